"""The data source `gapless`: batch and streaming reads of the log; writes go to the sink."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from gapless_spark.columns import ddl
from gapless_spark.errors import BadOption
from gapless_spark.options import ReadOptions, read_options
from gapless_spark.payload import payload_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class GaplessDataSource(DataSource):
    """Messages as rows. `options.ReadOptions` and docs list the options. Register it with `register`."""

    parallelism: ClassVar[int] = 2
    """The number of tasks that can run at once, as known when the source was registered."""
    zone: ClassVar[str] = "UTC"
    """The session's time zone when the source was registered, for a session that never set one."""

    @classmethod
    def name(cls) -> str:
        return "gapless"

    def schema(self) -> str:
        # At this point it is not known whether this is a stream, so only options of both kinds are read.
        shaping = ("payload", "binary", "changes")
        given = {name: value for name, value in self.options.items() if name.lower() in shaping}
        options = read_options({"url": "later", **given})
        return schema_ddl(options)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        check_schema(options, schema)
        return GaplessReader(options, schema, self.parallelism, self.zone)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        from gapless_spark.stream import GaplessStreamReader

        options = read_options(self.options, streaming=True)
        check_schema(options, schema)
        return GaplessStreamReader(options, schema, self.parallelism, self.zone)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from gapless_spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from gapless_spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


class GaplessReader(DataSourceReader):
    """A batch read of all settled messages between two bounds."""

    def __init__(self, options: ReadOptions, schema: StructType, parallelism: int, zone: str = "UTC") -> None:
        self.options = options
        self.schema = schema
        self.parallelism = parallelism
        self.zone = zone

    def partitions(self) -> list[InputPartition]:
        from gapless_spark.planning import plan_batch

        return list(plan_batch(self.options, self.parallelism))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from gapless_spark.reading import read_part

        return read_part(self.options, self.schema, partition, zone=self.zone)


def schema_ddl(options: ReadOptions) -> str:
    """The schema of a read in Spark's DDL."""
    return ddl(options.columns).replace("`data` string", f"`data` {payload_type(options.payload)}", 1)


def check_schema(options: ReadOptions, schema: StructType) -> None:
    """Raises `BadOption` if the caller gave another schema than the source has."""
    names = tuple(schema.fieldNames())
    if names != options.columns:
        raise BadOption(
            f"schema: the columns are {', '.join(options.columns)}, not {', '.join(names)}. Leave schema(…) "
            "out; for the shape of data there is the option payload"
        )


def register(spark: SparkSession) -> None:
    """Registers `format("gapless")` in a session. Call it once per session; a second call is harmless."""
    tasks, its_zone = parallelism_of(spark), spark.conf.get("spark.sql.session.timeZone") or "UTC"

    # A class that is made here is pickled by value, so these reach the workers with it.
    class Registered(GaplessDataSource):
        parallelism = tasks
        zone = its_zone

    spark.dataSource.register(Registered)


def parallelism_of(spark: SparkSession) -> int:
    """How many tasks the session runs at once; 8 with Spark Connect, where this is unknown."""
    configured = spark.conf.get("spark.default.parallelism", None)
    if configured:
        return max(1, int(configured))
    try:
        return max(1, int(spark.sparkContext.defaultParallelism))
    except Exception:  # noqa: BLE001  (Connect has no context, and raises errors of several classes)
        return 8
