"""Streaming queries: checkpoints, triggers, and what ends a query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.patience import eventually
from tests.pipeline.conftest import Log

pytestmark = pytest.mark.spark


class Query:
    """A stream into a folder of Parquet, with its checkpoint."""

    def __init__(self, log: Log, folder: Path, **options: Any) -> None:
        self._log = log
        self._options = {"startingOffsets": "earliest"} | options
        self.checkpoint = folder / "checkpoint"
        self.out = folder / "out"

    def start(self, **options: Any) -> StreamingQuery:
        """Run it until it is stopped."""
        return self._write(options).start(str(self.out))

    def drain(self, **options: Any) -> StreamingQuery:
        """Read what is there now, to its end."""
        query = self._write(options).trigger(availableNow=True).start(str(self.out))
        query.awaitTermination()
        return query

    def _write(self, options: dict[str, Any]) -> DataStreamWriter:
        frame = self._log.stream(**self._options | options)
        return frame.writeStream.format("parquet").option("checkpointLocation", str(self.checkpoint))

    def ids(self) -> list[int]:
        """What was written, sorted."""
        read = self._log.spark.read.schema("id bigint").parquet(str(self.out))
        return sorted(row.id for row in read.collect())

    def offsets(self) -> list[dict[str, Any]]:
        """The offsets of all batches, oldest first."""
        files = sorted(
            (path for path in (self.checkpoint / "offsets").glob("[0-9]*")), key=lambda p: int(p.name)
        )
        return [json.loads(path.read_text().splitlines()[-1]) for path in files]


def test_a_query_goes_on_where_its_checkpoint_ends(log: Log, tmp_path: Path) -> None:
    query = Query(log, tmp_path, maxOffsetsPerTrigger="4")
    ids = log.owner.append("a", ["1"] * 10)
    done = query.drain()
    assert query.ids() == ids
    assert [offset["id"] for offset in query.offsets()] == [4, 8, 10]
    rows = [progress["numInputRows"] for progress in done.recentProgress if progress["numInputRows"]]
    assert rows == [4, 4, 2]
    (source,) = done.recentProgress[0]["sources"]
    assert (json.loads(source["endOffset"])["id"], json.loads(source["latestOffset"])["id"]) == (4, 10)

    # An id that is taken before the next run and committed after it comes with the run after.
    slow = log.session()
    slow.execute("begin")
    slow.publish("slow", '{"late": true}')
    ids += log.owner.append("b", ["1"] * 2)
    query.drain()
    assert query.ids() == ids
    slow.execute("commit")
    query.drain()
    assert query.ids() == [*ids, ids[-1] + 1]
    # Nothing new makes no batch.
    batches = len(query.offsets())
    query.drain()
    assert len(query.offsets()) == batches


@pytest.mark.drill
async def test_a_running_query_follows(log: Log, tmp_path: Path) -> None:
    idle = log.session()
    log.owner.execute("create table notes (text text)")
    idle.execute("begin")
    idle.execute("insert into notes values ('open')")
    query = Query(log, tmp_path, channels="orders.>", minPartitions="2")
    running = query.start()
    try:
        log.owner.append("orders.eu", ["1"] * 3)
        await eventually(lambda: query.offsets() and query.offsets()[-1]["id"] >= 3)
        log.owner.append("other", ["1"] * 3)
        log.owner.append("orders.us.new", ["1"] * 3)
        await eventually(lambda: query.offsets()[-1]["id"] >= 9)
        running.processAllAvailable()
    finally:
        running.stop()
    assert query.ids() == [1, 2, 3, 7, 8, 9]


@pytest.mark.drill
def test_what_ends_a_query_is_told(log: Log, tmp_path: Path) -> None:
    query = Query(log, tmp_path, maxOffsetsPerTrigger="4")
    log.owner.append("a", ["1"] * 4)
    query.drain()
    log.owner.append("a", ["1"] * 6)
    log.owner.execute("update gapless.channels set max_messages = 2")
    log.owner.execute("select gapless.trim_channels(10)")
    with pytest.raises(StreamingQueryException, match="DataLoss: retention removed messages after id 4"):
        query.drain()
    query.drain(failOnDataLoss="false")
    assert query.ids() == [1, 2, 3, 4, 9, 10]
    log.owner.execute("update gapless.fences set epoch = gen_random_uuid()")
    with pytest.raises(StreamingQueryException, match="OtherLog: The checkpoint was written for the log"):
        query.drain()
