"""The query that `load.spark.sink` runs and kills: text files into the sink, with tasks that fail."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gapless_spark.session import SessionOptions, start
from gapless_spark.sink import GaplessStreamWriter, Staged, stream_writer
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

FAILS = 0.1
"""The share of tasks that fail before staging; as many fail half way, and as many after staging."""

PARTITIONS = 4


class Unlucky(Exception):  # noqa: N818
    """The planned failure of a task."""


class UnluckyWriter(GaplessStreamWriter):
    """The sink's writer, with random failures."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        draw = random.random()
        if draw < FAILS:
            raise Unlucky("before")
        staged = super().write(_half_of(iterator) if draw < 2 * FAILS else iterator)
        if draw > 1 - FAILS:
            raise Unlucky("after")
        return staged


def _half_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, batch.num_rows // 2)
        raise Unlucky("half way")


class UnluckyDataSource(DataSource):
    """The sink of `gapless`, with `UnluckyWriter`."""

    @classmethod
    def name(cls) -> str:
        return "unlucky"

    def streamWriter(self, schema: StructType, overwrite: bool) -> UnluckyWriter:  # noqa: N802
        writer = stream_writer(self.options, schema, overwrite)
        return UnluckyWriter(writer.target)


def main(url: str, source: str, checkpoint: str) -> int:
    """Write all files in `source` to the sink, one file in each batch."""
    spark = start(SessionOptions("sink", "local[2,10]", quick=True))
    # Workers cannot import this module, so its classes are sent by value.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    spark.dataSource.register(UnluckyDataSource)
    rows = (
        spark.readStream.option("maxFilesPerTrigger", "1")
        .text(source)
        .repartition(PARTITIONS)
        .selectExpr(
            "concat('spark.', value % 7) as channel", "concat('{\"n\":', value, '}') as data", "value as key"
        )
    )
    writing = rows.writeStream.format("unlucky").option("url", url).option("checkpointLocation", checkpoint)
    query = writing.trigger(availableNow=True).start()
    query.awaitTermination()
    for progress in query.recentProgress:
        print(progress["batchId"], progress["numInputRows"], progress["durationMs"], flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
