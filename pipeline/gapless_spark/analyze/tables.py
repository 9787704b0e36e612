"""The tables of a run: kept for the figures that are drawn from them, and written as Parquet if asked."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pyspark import StorageLevel

from gapless_spark.errors import BadOption
from gapless_spark.places import scheme_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]


class Tables:
    """Names tables, writes each into a folder of its own, and lets go of all at the end."""

    def __init__(self, spark: SparkSession, folder: str | None) -> None:
        self.spark = spark
        self.folder = folder
        self.written: list[str] = []
        self._kept: list[DataFrame] = []

    def keep(self, frame: DataFrame) -> DataFrame:
        """Work it out once, however often it is asked; what does not fit into memory goes to disk."""
        self._kept.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return self._kept[-1]

    def made(self, part: list[Row], schema: str) -> DataFrame:
        """A small frame of rows. As Arrow it goes over at once; a list would be unpacked by a Python process
        that Spark starts for it."""
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructType

        columns = cast("StructType", StructType.fromDDL(schema))
        table = pa.Table.from_pylist(part, schema=to_arrow_schema(columns, timezone="UTC"))
        # The stubs of this version do not know of Arrow's tables.
        make: Any = self.spark.createDataFrame
        return cast("DataFrame", make(table, columns))

    def write(self, name: str, frame: DataFrame) -> DataFrame:
        """Make the table `name` of the result. Gives back what the figures are to be drawn from."""
        if self.folder is None:
            return self.keep(frame)
        path = f"{self.folder.rstrip('/')}/{name}"
        frame.write.mode("overwrite").parquet(path)
        self.written.append(name)
        return self.spark.read.schema(frame.schema).parquet(path)

    def close(self) -> None:
        for frame in self._kept:
            frame.unpersist()
        self._kept.clear()


def rows(frame: DataFrame, limit: int | None = None) -> list[Row]:
    """A small frame as dictionaries; times are aware, in the time zone of the session."""
    found: list[Row] = (frame if limit is None else frame.limit(limit)).toArrow().to_pylist()
    return found


def check_folder(folder: str | None, source: str) -> None:
    """Refuse to write tables into the export: whoever reads it would take them for messages."""
    if folder is None or scheme_of(folder) or scheme_of(source):
        return
    inside, outside = Path(folder).resolve(), Path(source).resolve()
    if inside == outside or outside in inside.parents:
        raise BadOption(f"--tables: {folder} lies in the export that is read; choose another folder")


def check_place(folder: str | None) -> None:
    """Raise `BadOption` where this machine cannot write tables: better before the work than in it."""
    if folder is None or scheme_of(folder):
        return
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise BadOption(f"--tables: {folder} cannot be written: {error.strerror}") from None
