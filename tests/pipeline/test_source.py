"""Batch reads by Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import gapless_spark
import pytest
from gapless_spark.columns import COLUMNS, spark_schema
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (as everybody writes it)

from tests.pipeline.conftest import Log

pytestmark = pytest.mark.spark

NAMED = (
    '{"n": 1.50, "big": 123456789012345678901234567890.10, "text": "zero \\u0000, é, 😀, \\"", "list": [1E2]}'
)


def shown(log: Log, **options: Any) -> str:
    """What the user is shown of a read that fails."""
    with pytest.raises(PySparkException) as caught:
        log.read(**options).collect()
    return str(caught.value)


def test_every_member_comes_as_it_is(log: Log) -> None:
    log.owner.append("chat.lobby", [NAMED], type="note", key="ü", headers='{"a": "b", "é": ""}', sender="ann")
    log.owner.append("chat.lobby", ["null", b"\x00\xff"])
    frame = log.read()
    assert frame.schema == spark_schema()
    first, null, binary = sorted(frame.collect())
    assert tuple(first)[:8] == (1, "chat.lobby", 1, "note", "ü", NAMED, {"a": "b", "é": ""}, "ann")
    assert (null.data, null.key, null.headers, null.sender) == ("null", None, None, None)
    assert binary.data is None
    stored = log.owner.value("select created_at from gapless.messages where id = 1")
    (created,) = frame.where("id = 1").select(F.unix_micros("created_at")).first() or (None,)
    assert created == (stored - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)

    with_bytes = log.read(binary="true")
    assert with_bytes.columns == [*COLUMNS, "binary"]
    assert sorted((row.id, row.binary) for row in with_bytes.collect()) == [
        (1, None),
        (2, None),
        (3, bytearray(b"\x00\xff")),
    ]


def test_nothing_and_next_to_nothing(log: Log) -> None:
    assert log.read().count() == 0
    log.owner.append("a", ["1"])
    assert log.ids() == [1]


def test_partitions_cover_voids_and_segments(log: Log) -> None:
    expected = log.owner.append("a", ["1"] * 300)
    log.owner.execute("begin")
    log.owner.append("a", ["1"] * 500)
    log.owner.execute("rollback")
    assert log.owner.value("select gapless.roll_segment(0)")
    expected += log.owner.append("a", ["1"] * 100)
    frame = log.read(minPartitions="4")
    counts = frame.groupBy(F.spark_partition_id()).count().collect()
    assert sorted(row["count"] for row in counts) == [100] * 4
    assert sorted(row.id for row in frame.select("id").collect()) == expected


def test_payloads(log: Log) -> None:
    log.owner.append("a", [NAMED, '{"n": "not a number", "list": null}', "[7]", b"\x01"])
    fields = "n decimal(10,2), text string, list array<double>"
    rows = log.read(payload=fields).orderBy("id").select("data.*").collect()
    assert rows[0] == (Decimal("1.50"), 'zero \x00, é, 😀, "', [100.0])
    assert [tuple(row) for row in rows[1:]] == [(None, None, None)] * 3

    variant = log.read(payload="variant").orderBy("id")
    by_spark = gapless_spark.parsed(log.read()).orderBy("id")
    for frame in (variant, by_spark):
        made = frame.selectExpr(
            "try_variant_get(data, '$.n', 'decimal(10,2)')",
            "variant_get(data, '$.text', 'string')",
            "data is null",
        ).collect()
        assert tuple(made[0]) == (Decimal("1.50"), 'zero \x00, é, 😀, "', False)
        assert made[3][2] is True
    text = F.to_json("data")
    assert variant.select(text).collect() == by_spark.select(text).collect()
    typed = gapless_spark.parsed(log.read(), fields).orderBy("id").select("data.n").collect()
    assert typed[0].n == Decimal("1.50")


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_a_time_without_a_zone_is_in_the_session_s(log: Log, spark: SparkSession, zone: str) -> None:
    log.owner.append("a", ['{"t": "2026-11-20T12:00:00"}'])
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    try:
        spark.conf.set("spark.sql.session.timeZone", zone)
        made = [log.read(payload="t timestamp"), gapless_spark.parsed(log.read(), "t timestamp")]
        option, by_spark = [frame.select(F.unix_micros("data.t")).collect() for frame in made]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    noon = datetime(2026, 11, 20, 12, tzinfo=ZoneInfo(zone))
    assert option == by_spark == [(int(noon.timestamp()) * 1_000_000,)]


def test_a_snapshot_holds_still(log: Log) -> None:
    ids = log.owner.append("a", ["1"] * 10)
    with gapless_spark.snapshot(log.url) as view:
        frame = log.read(**view.options, minPartitions="3")
        log.owner.append("a", ["1"])
        log.owner.execute("update gapless.channels set max_messages = 2")
        log.owner.execute("select gapless.trim_channels(10)")
        assert sorted(row.id for row in frame.collect()) == ids
    assert "SnapshotGone" in shown(log, **view.options)
    assert log.ids() == [10, 11]


def test_errors_say_what_to_do(log: Log) -> None:
    assert "BadOption: channels: 'a..b' is neither" in shown(log, channels="a..b")
    with pytest.raises(PySparkException, match="BadOption: schema: the columns are id, channel"):
        log.spark.read.format("gapless").schema("id bigint").option("url", log.url).load().collect()

    away = shown(log, url="postgresql://u:hunter2@127.0.0.1:1/db")
    assert "DatabaseUnreachable: Postgres cannot be reached" in away
    assert "hunter2" not in away
    assert "AccessDenied: Postgres refused" in shown(log, url=log.url.replace("gapless_owner", "nobody"))
    elsewhere = log.url.replace(f"/{log.database.name}", "/postgres")
    assert "SchemaMissing: there is no Gapless in that database" in shown(log, url=elsewhere)
    log.owner.execute("delete from gapless.migrations where version > 1")
    assert "SchemaTooOld: the database has schema version 1" in shown(log)
