"""How people talk: sessions, replies, words."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# percentile_approx is off by at most one in this many ranks; with fewer values it is exact.
ACCURACY = 10_000


def sessions(events: DataFrame, gap_s: float) -> DataFrame:
    """sender, started_at, ended_at, seconds, messages, channels: one row a session, of known senders.

    A session is a run of one sender's messages, in whatever channels, with at most `gap_s` from each to the
    next. `seconds` lie between its first message and its last, so a session of one message has 0.
    """
    window = F.session_window("at", f"{round(gap_s * 1e6)} microseconds")
    return (
        events.where(F.col("sender").isNotNull())
        .groupBy("sender", window)
        .agg(
            F.min("at").alias("started_at"),
            F.max("at").alias("ended_at"),
            F.count("*").alias("messages"),
            F.size(F.collect_set("channel")).alias("channels"),
        )
        .select(
            "sender", "started_at", "ended_at", _seconds("started_at", "ended_at"), "messages", "channels"
        )
    )


def session_figures(found: DataFrame) -> DataFrame:
    """One row of `sessions`: sessions, senders, seconds_p50/p95/max, messages_p50/p95/max, single,
    messages."""
    return found.agg(
        F.count("*").alias("sessions"),
        F.count_distinct("sender").alias("senders"),
        *_spread("seconds"),
        *_spread("messages"),
        F.count_if(F.col("messages") == 1).alias("single"),
        F.avg("messages").alias("messages_mean"),
    )


def replies(events: DataFrame, within_s: float) -> DataFrame:
    """channel, seconds: one row for each message of a known sender.

    `seconds` from it to the next message of another known sender in the same channel, in order of time and
    id; null where none came within `within_s`.
    """
    backwards = Window.partitionBy("channel").orderBy(F.desc("at"), F.desc("id"))
    # Seen backwards, what follows in time is what a growing frame has passed already. The frame that grows
    # the other way would be added up anew for each row.
    later = backwards.rowsBetween(Window.unboundedPreceding, -1)
    taken_over = F.when(F.lead("sender").over(backwards) != F.col("sender"), F.col("at"))
    answered = (
        events.where(F.col("sender").isNotNull())
        .select("channel", "id", "sender", "at")
        .withColumn("taken_over", taken_over)
        .withColumn("answered_at", F.last("taken_over", ignorenulls=True).over(later))
        .select("channel", _seconds("at", "answered_at"))
    )
    kept = F.when(F.col("seconds") <= within_s, F.col("seconds"))
    return answered.select("channel", kept.alias("seconds"))


def reply_latency(found: DataFrame) -> DataFrame:
    """channel (null: all of them), messages, answered, seconds p50/p90/p95/p99; from `replies`."""
    return found.rollup("channel").agg(
        F.count("*").alias("messages"),
        F.count("seconds").alias("answered"),
        *_percentiles("seconds", (50, 90, 95, 99)),
    )


def words(events: DataFrame) -> DataFrame:
    """channel (null: all of them), messages (with text), words, mean, words p50/p95, longest."""
    return (
        events.where(F.col("words").isNotNull())
        .rollup("channel")
        .agg(
            F.count("*").alias("messages"),
            F.sum("words").alias("words"),
            F.avg("words").alias("mean"),
            *_percentiles("words", (50, 95)),
            F.max("words").alias("longest"),
        )
    )


def histogram(values: DataFrame, column: str, edges: Sequence[float]) -> DataFrame:
    """bin, n: how many values lie in edges[bin] <= value < edges[bin + 1]; the last bin has no end, nulls
    none.

    `edges` rise; what is below the first counts into it. Only bins with something in them have a row.
    """
    assert all(low < high for low, high in pairwise(edges))
    place = F.lit(0)
    for edge in edges[1:]:
        place = place + (F.col(column) >= edge).cast("int")
    return values.where(F.col(column).isNotNull()).groupBy(place.alias("bin")).agg(F.count("*").alias("n"))


def _seconds(start: str, end: str) -> Column:
    micros = F.unix_micros(F.col(end)) - F.unix_micros(F.col(start))
    return (micros / 1e6).alias("seconds")


def _percentiles(column: str, ranks: Sequence[int]) -> list[Column]:
    return [F.percentile_approx(column, rank / 100, ACCURACY).alias(f"{column}_p{rank}") for rank in ranks]


def _spread(column: str) -> list[Column]:
    return [*_percentiles(column, (50, 95)), F.max(column).alias(f"{column}_max")]
