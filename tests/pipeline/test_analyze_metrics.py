"""Each metric against a small example that was counted by hand, and some against a plain count of chance."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from gapless_spark.analyze import conversation, rates, volume
from gapless_spark.analyze.tables import rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from tests.pipeline.analyzing import START, Said, at, events_of, percentile, plain_replies, plain_sessions

pytestmark = [pytest.mark.spark, pytest.mark.drill]

HOUR = timedelta(hours=1)
SMALL: list[Said] = [
    (0, "a", "ann"),
    (10, "a", "ann"),
    (25, "a", "bob"),
    (40, "b", "ann"),
    (3600, "a", "bob"),
    (3700, "b", None),
    (86400, "a", "ann"),
]


def rate_of(events: DataFrame, unit: str) -> dict[str, Any]:
    """What `rates` says of one unit."""
    seconds = rates.per_second(events)
    counts = seconds if unit == "second" else rates.per_unit(seconds, unit)
    found = rates.rate(rows(rates.weights({unit: counts})), unit)
    assert found is not None
    return found


# Times in steps of a quarter of a second, so that equal ones and exact gaps come up.
said_by_chance = st.lists(
    st.tuples(
        st.integers(0, 120).map(lambda quarter: quarter / 4),
        st.sampled_from(["a", "b"]),
        st.sampled_from(["ann", "bob", "eve", None]),
    ),
    min_size=1,
    max_size=25,
)
few = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def small(spark: SparkSession) -> DataFrame:
    return events_of(spark, SMALL)


def pairs(frame: DataFrame, *columns: str) -> set[tuple[object, ...]]:
    return {tuple(row[column] for column in columns) for row in rows(frame)}


def test_totals(small: DataFrame) -> None:
    assert rows(volume.totals(small)) == [
        {
            "messages": 7,
            "channels": 2,
            "senders": 2,
            "bytes": 70,
            "first_at": START,
            "last_at": at(86400),
            "without_sender": 1,
            "without_text": 0,
        }
    ]


def test_totals_of_nothing(spark: SparkSession) -> None:
    assert rows(volume.totals(events_of(spark, [])))[0]["messages"] == 0


def test_volume_by_hour_and_what_comes_of_it(small: DataFrame) -> None:
    hours = volume.volume_by_hour(small)
    assert pairs(hours, "channel", "hour", "messages", "bytes") == {
        ("a", START, 3, 30),
        ("b", START, 1, 10),
        ("a", START + HOUR, 1, 10),
        ("b", START + HOUR, 1, 10),
        ("a", START + 24 * HOUR, 1, 10),
    }
    days = volume.volume_by_period(hours, "day", ["b"])
    day = START - 9 * HOUR
    assert pairs(days, "period", "channel", "messages") == {
        (day, "b", 2),
        (day, None, 4),
        (day + 24 * HOUR, None, 1),
    }
    assert pairs(volume.hours_of_day(hours), "channel", "hour", "messages") == {
        ("a", 9, 4),
        ("a", 10, 1),
        ("b", 9, 1),
        ("b", 10, 1),
    }
    assert pairs(volume.busiest_hours(hours), "weekday", "hour", "messages") == {
        (0, 9, 4),
        (0, 10, 2),
        (1, 9, 1),
    }


def test_active_senders(small: DataFrame) -> None:
    by_hour = volume.active_senders(small, "hour")
    assert pairs(by_hour, "period", "senders", "messages") == {
        (START, 2, 4),
        (START + HOUR, 1, 1),
        (START + 24 * HOUR, 1, 1),
    }
    assert pairs(volume.peak_by_period(by_hour, "week"), "senders") == {(2,)}


def test_channels_and_senders(small: DataFrame) -> None:
    channels = volume.by_channel(small)
    assert pairs(channels, "channel", "messages", "senders", "first_at") == {
        ("a", 5, 2, START),
        ("b", 2, 1, at(40)),
    }
    senders = volume.by_sender(small)
    assert pairs(senders, "sender", "messages", "channels") == {("ann", 4, 2), ("bob", 2, 1)}


def test_a_session_ends_with_silence_longer_than_the_gap(spark: SparkSession) -> None:
    said: list[Said] = [(0, "a", "ann"), (59.999, "b", "ann"), (120, "a", "ann"), (1, "a", "bob")]
    found = rows(conversation.sessions(events_of(spark, said), 60))
    assert sorted((r["sender"], r["seconds"], r["messages"], r["channels"]) for r in found) == [
        ("ann", 0.0, 1, 1),
        ("ann", 59.999, 2, 2),
        ("bob", 0.0, 1, 1),
    ]
    figures = rows(conversation.session_figures(conversation.sessions(events_of(spark, said), 60)))[0]
    assert (figures["sessions"], figures["senders"], figures["single"], figures["messages_max"]) == (
        3,
        2,
        2,
        2,
    )


def test_a_reply_is_the_next_message_of_another(small: DataFrame) -> None:
    found = rows(conversation.replies(small, 3600))
    assert sorted(((r["channel"], r["seconds"]) for r in found), key=str) == [
        ("a", 15.0),
        ("a", 25.0),
        ("a", None),
        ("a", None),
        ("a", None),
        ("b", None),
    ]
    latency = {r["channel"]: r for r in rows(conversation.reply_latency(conversation.replies(small, 3600)))}
    assert (latency[None]["messages"], latency[None]["answered"], latency["a"]["seconds_p99"]) == (6, 2, 25.0)


def test_percentiles_are_the_ranks_however_messages_are_shared_out(spark: SparkSession) -> None:
    """More different values than a sketch of Spark's keeps."""
    many = 40_000
    found = spark.range(many).selectExpr("'a' channel", f"pmod(id * 7919, {many}) / 1000.0D seconds")
    wanted = {rank: (many * rank // 100 - 1) / 1000 for rank in (50, 90, 95, 99)}
    for parts in (1, 3):
        for row in rows(conversation.reply_latency(found.repartition(parts))):
            assert {rank: row[f"seconds_p{rank}"] for rank in wanted} == wanted
    sessions = found.selectExpr("channel sender", "seconds", "1L messages")
    figures = rows(conversation.session_figures(sessions))[0]
    assert (figures["seconds_p50"], figures["seconds_p95"], figures["messages_p95"]) == (
        wanted[50],
        wanted[95],
        1,
    )


def test_words(spark: SparkSession) -> None:
    both = events_of(spark, SMALL[:3], 4).unionByName(events_of(spark, SMALL[3:], None))
    found = {row["channel"]: row for row in rows(conversation.words(both))}
    assert set(found) == {None, "a"}
    assert (found[None]["messages"], found[None]["words"], found["a"]["words_p50"]) == (3, 12, 4)


def test_histogram_bins_begin_at_their_edges(spark: SparkSession) -> None:
    values = spark.createDataFrame([(v,) for v in (0.0, 0.999, 1.0, 5.0, 5.0, 99.0, None)], "v double")
    assert pairs(conversation.histogram(values, "v", (0, 1, 5)), "bin", "n") == {(0, 2), (1, 1), (2, 3)}


def test_rates_count_silent_seconds_without_making_them(spark: SparkSession) -> None:
    # Ten seconds: 3, then silence, then 1.
    events = events_of(spark, [(0.1, "a", "x"), (0.2, "a", "x"), (0.9, "b", "x"), (9.5, "a", "x")])
    found = rate_of(events, "second")
    assert (found["units"], found["active"], found["mean"], found["max"]) == (10, 2, 0.4, 3)
    assert (found["p50"], found["p95"], found["active_p50"]) == (0.0, pytest.approx(2.1), 2.0)
    assert found["max_at"] == START
    assert pairs(rates.peaks(rates.per_second(events), "hour"), "period", "messages") == {(START, 3)}


def test_rate_of_nothing_has_no_row(spark: SparkSession) -> None:
    seconds = rates.per_second(events_of(spark, []))
    assert rates.rate(rows(rates.weights({"second": seconds})), "second") is None


@few
@given(said=said_by_chance, gap=st.sampled_from([0.25, 1, 5]))
def test_sessions_as_a_plain_count_has_them(spark: SparkSession, said: list[Said], gap: float) -> None:
    found = rows(conversation.sessions(events_of(spark, said), gap))
    mine = sorted((r["sender"], round(r["seconds"], 3), r["messages"], r["channels"]) for r in found)
    assert mine == plain_sessions(said, gap)


@few
@given(said=said_by_chance, within=st.sampled_from([0.25, 2, 60]))
def test_replies_as_a_plain_count_has_them(spark: SparkSession, said: list[Said], within: float) -> None:
    found = rows(conversation.replies(events_of(spark, said), within))
    mine = sorted(
        ((r["channel"], None if r["seconds"] is None else round(r["seconds"], 3)) for r in found), key=str
    )
    assert mine == plain_replies(said, within)


@few
@given(said=said_by_chance)
def test_rates_as_a_plain_count_has_them(spark: SparkSession, said: list[Said]) -> None:
    events = events_of(spark, said)
    for unit, width in rates.UNIT_S.items():
        found = rate_of(events, unit)
        places = [int(one[0]) // width for one in said]
        counts = [places.count(s) for s in range(min(places), max(places) + 1)]
        for rank in (50, 95, 99):
            assert found[f"p{rank}"] == pytest.approx(percentile(counts, rank / 100))
            assert found[f"active_p{rank}"] == pytest.approx(percentile([n for n in counts if n], rank / 100))
        assert (found["max"], found["units"]) == (max(counts), len(counts))
