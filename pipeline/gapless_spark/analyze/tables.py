"""The tables of a run: kept for the figures that are drawn from them, and written as Parquet if asked."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pyspark import StorageLevel

from gapless_spark.errors import BadOption
from gapless_spark.places import scheme_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Row = dict[str, Any]


class Tables:
    """Names tables, writes each into a folder of its own, and lets go of all at the end.

    `few`: what is read is so little that this process holds it. Each table is then worked out once, comes
    here and goes back as rows of one part, of which Spark makes plans without shuffles; and is written from
    here. To keep a table in Spark, to write it there and to read it again takes longer, however few rows.
    """

    def __init__(self, spark: SparkSession, folder: str | None, few: bool = False) -> None:
        self.spark = spark
        self.folder = folder
        self.few = few
        self._kept: list[DataFrame] = []

    def keep(self, frame: DataFrame) -> DataFrame:
        """Work it out once, however often it is asked; what does not fit into memory goes to disk."""
        if self.few:
            return self.held(frame.toArrow(), frame.schema)
        self._kept.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return self._kept[-1]

    def held(self, found: pa.Table, schema: StructType) -> DataFrame:
        """A frame of rows that this process has. As Arrow they go over at once; a list would be unpacked by a
        Python process that Spark starts for it."""
        # The stubs of this version do not know of Arrow's tables.
        make: Any = self.spark.createDataFrame
        return cast("DataFrame", make(found, schema)).coalesce(1)

    def write(self, name: str, frame: DataFrame) -> DataFrame:
        """Make the table `name` of the result. Gives back what the figures are to be drawn from."""
        if self.folder is None:
            return self.keep(frame)
        path = f"{self.folder.rstrip('/')}/{name}"
        if not self.few:
            frame.write.mode("overwrite").parquet(path)
            return self.spark.read.schema(frame.schema).parquet(path)
        found = frame.toArrow()
        self._store(path, found, frame.schema)
        return self.held(found, frame.schema)

    def write_rows(self, name: str, part: list[Row], schema: str) -> None:
        """Make the table `name` of rows that are here."""
        if self.folder is None:
            return
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructType

        columns = cast("StructType", StructType.fromDDL(schema))
        found = pa.Table.from_pylist(part, schema=to_arrow_schema(columns, timezone="UTC"))
        self._store(f"{self.folder.rstrip('/')}/{name}", found, columns)

    def _store(self, path: str, found: pa.Table, schema: StructType) -> None:
        if self.few and not scheme_of(path):
            write_files(Path(path), found)
        else:
            self.held(found, schema).write.mode("overwrite").parquet(path)

    def close(self) -> None:
        for frame in self._kept:
            frame.unpersist()
        self._kept.clear()


def rows(frame: DataFrame, limit: int | None = None) -> list[Row]:
    """A small frame as dictionaries; times are aware, in the time zone of the session."""
    import pyarrow as pa

    found = (frame if limit is None else frame.limit(limit)).toArrow()
    # Spark gives them in UTC.
    clock = pa.timestamp("us", tz=frame.sparkSession.conf.get("spark.sql.session.timeZone"))
    here = [field.with_type(clock) if pa.types.is_timestamp(field.type) else field for field in found.schema]
    made: list[Row] = found.cast(pa.schema(here)).to_pylist()
    return made


def write_files(folder: Path, found: pa.Table) -> None:
    """Write a table as Spark would, in place of what is there: one file, and `_SUCCESS` once it is whole."""
    import pyarrow.parquet as pq

    if folder.is_dir():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    # Spark's own kind of times: a table must not be of another type when the log has grown.
    pq.write_table(found, folder / "part-00000.snappy.parquet", use_deprecated_int96_timestamps=True)
    (folder / "_SUCCESS").touch()


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
