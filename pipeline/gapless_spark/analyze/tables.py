"""The tables of a run: kept for the figures, and written as Parquet if asked."""

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
    """Keeps tables, writes each into its own folder, and frees them at the end.

    `few`: there are so few messages that this process holds them. Each table is then computed once, fetched,
    and given back to Spark as one partition, which Spark plans without shuffles; this process also writes it.
    For few rows this is faster than keeping, writing and reading the table in Spark.
    """

    def __init__(self, spark: SparkSession, folder: str | None, few: bool = False) -> None:
        self.spark = spark
        self.folder = folder
        self.few = few
        self._kept: list[DataFrame] = []

    def keep(self, frame: DataFrame) -> DataFrame:
        """Compute a frame only once, for several uses. What does not fit into memory goes to disk."""
        if self.few:
            return self.held(frame.toArrow(), frame.schema)
        self._kept.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return self._kept[-1]

    def held(self, found: pa.Table, schema: StructType) -> DataFrame:
        """A frame of rows that this process holds. They are passed as Arrow, because for a list Spark would
        start a Python process to unpack it."""
        # The type stubs of this version do not know Arrow tables.
        make: Any = self.spark.createDataFrame
        return cast("DataFrame", make(found, schema)).coalesce(1)

    def write(self, name: str, frame: DataFrame) -> DataFrame:
        """Write the table `name` if a folder is given. Returns the frame to draw figures from."""
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
        """Write the table `name` from rows that this process holds, if a folder is given."""
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
    """The rows of a small frame as dictionaries. Times are aware, in the time zone of the session."""
    import pyarrow as pa

    found = (frame if limit is None else frame.limit(limit)).toArrow()
    # Spark returns times in UTC.
    clock = pa.timestamp("us", tz=frame.sparkSession.conf.get("spark.sql.session.timeZone"))
    here = [field.with_type(clock) if pa.types.is_timestamp(field.type) else field for field in found.schema]
    made: list[Row] = found.cast(pa.schema(here)).to_pylist()
    return made


def write_files(folder: Path, found: pa.Table) -> None:
    """Replace a table's folder as Spark would: one file, and `_SUCCESS` once it is complete."""
    import pyarrow.parquet as pq

    if folder.is_dir():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    # Spark's own type of times, so that the table keeps its types when Spark writes it for a larger log.
    pq.write_table(found, folder / "part-00000.snappy.parquet", use_deprecated_int96_timestamps=True)
    (folder / "_SUCCESS").touch()


def check_folder(folder: str | None, source: str) -> None:
    """Raise `BadOption` if the tables would be in the export: its readers would take them for messages."""
    if folder is None or scheme_of(folder) or scheme_of(source):
        return
    inside, outside = Path(folder).resolve(), Path(source).resolve()
    if inside == outside or outside in inside.parents:
        raise BadOption(f"--tables: {folder} is in the export that is read; choose another folder")


def check_place(folder: str | None) -> None:
    """Raise `BadOption` if this machine cannot write tables. Called before the work, so that it is not
    wasted."""
    if folder is None or scheme_of(folder):
        return
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise BadOption(f"--tables: {folder} cannot be written: {error.strerror}") from None
