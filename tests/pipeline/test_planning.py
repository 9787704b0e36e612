"""The bounds of a batch read, as Spark's planning has them, without Spark."""

from __future__ import annotations

from datetime import timedelta

import pytest
from gapless_spark.columns import spark_schema
from gapless_spark.errors import BadOption, DataLoss
from gapless_spark.options import read_options
from gapless_spark.planning import plan_batch
from gapless_spark.reading import read_part

from tests.pipeline.conftest import Log


def read(log: Log, **options: str) -> list[int]:
    """The ids of a batch read, sorted."""
    made = read_options({"url": log.url} | options)
    parts = plan_batch(made, 2)
    return sorted(
        id_
        for part in parts
        for batch in read_part(made, spark_schema(), part)
        for id_ in batch[0].to_pylist()
    )


def test_offsets_and_patterns(plain_log: Log) -> None:
    assert read(plain_log) == []
    for channel in ("a", "a.b", "a.b.c", "x"):
        plain_log.owner.append(channel, ["1"] * 2)
    assert read(plain_log) == list(range(1, 9))
    assert read(plain_log, channels="a.>") == [3, 4, 5, 6]
    assert read(plain_log, channels="*, a.b.c") == [1, 2, 5, 6, 7, 8]
    assert read(plain_log, channels="nobody") == []
    assert read(plain_log, startingOffsets="2", endingOffsets="5", minPartitions="9") == [3, 4, 5]
    assert read(plain_log, startingOffsets="5", endingOffsets="5") == []
    assert read(plain_log, endingOffsets="0") == []
    for name in ("startingOffsets", "endingOffsets"):
        with pytest.raises(BadOption, match=f"^{name}: 9 lies beyond the log, whose newest id is 8"):
            read(plain_log, **{name: "9"})


def test_times_are_exact(plain_log: Log) -> None:
    for _ in range(3):
        plain_log.owner.append("a", ["1"] * 2)
    noon = plain_log.owner.value("select created_at from gapless.messages where id = 4")
    after = (noon + timedelta(microseconds=1)).isoformat()
    assert read(plain_log, startingTimestamp=after) == [5, 6]
    assert read(plain_log, endingTimestamp=after) == [1, 2, 3, 4]
    assert read(plain_log, endingTimestamp=noon.isoformat()) == [1, 2]
    assert read(plain_log, startingTimestamp=noon.isoformat(), endingTimestamp=after) == [3, 4]
    assert read(plain_log, startingTimestamp="2100-01-01T00:00:00Z") == []


def test_namespaces_do_not_leak(plain_log: Log) -> None:
    plain_log.owner.execute("insert into gapless.namespaces (name) values ('team')")
    plain_log.owner.append("a", ["1"])
    plain_log.owner.append("a", ["2"], namespace="team")
    assert read(plain_log) == [1]
    assert read(plain_log, namespace="team", channels=">") == [2]
    assert read(plain_log, namespace="nobody") == []


def test_retention_behind_a_start_that_was_named(plain_log: Log) -> None:
    plain_log.owner.append("a", ["1"] * 10)
    plain_log.owner.execute("update gapless.channels set max_messages = 2")
    plain_log.owner.execute("select gapless.trim_channels(10)")
    with pytest.raises(DataLoss, match="retention removed messages after id 3"):
        read(plain_log, startingOffsets="3")
    assert read(plain_log, startingOffsets="3", failOnDataLoss="false") == [9, 10]
    assert read(plain_log, startingOffsets="8") == [9, 10]
    assert read(plain_log) == [9, 10]
