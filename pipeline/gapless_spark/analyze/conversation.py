"""Metrics of conversations: sessions, replies, words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, WindowSpec


def sessions(events: DataFrame, gap_s: float) -> DataFrame:
    """sender, started_at, ended_at, seconds, messages, channels: one row for each session of a known sender.

    A session is a run of one sender's messages, in any channels, with at most `gap_s` from each to the next.
    `seconds` is the time from its first message to its last; 0 for a session of one message.
    """
    gap_us = round(gap_s * 1e6)
    # Spark's own session_window merges sessions row by row, which takes ten times as long.
    forwards = Window.partitionBy("sender").orderBy("at")
    at_us = F.unix_micros("at")
    begins = F.when(at_us - F.lag(at_us).over(forwards) <= gap_us, 0).otherwise(1)
    return (
        events.where(F.col("sender").isNotNull())
        .select("sender", "channel", "at", begins.alias("begins"))
        .withColumn("number", F.sum("begins").over(_up_to_here(forwards)))
        .groupBy("sender", "number")
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
    messages_mean."""
    n, value = F.col("n"), F.col("value")

    def of(kind: str, what: Column) -> Column:
        return F.when(F.col("kind") == kind, what)

    def counted(kind: str, what: Column) -> DataFrame:
        counts = found.groupBy(kind).agg(F.count("*").alias("n"))
        return counts.select(F.lit(kind).alias("kind"), what.cast("double").alias("value"), "n")

    # One union of three tables of counts, because joining their results would need a job for each.
    kinds = (("seconds", F.col("seconds")), ("messages", F.col("messages")), ("sender", F.lit(None)))
    counts = reduce(lambda all_, one: all_.unionByName(one), (counted(*kind) for kind in kinds))
    ranked = _ranked(counts, "kind", "value")
    sessions = F.sum(of("messages", n))
    whole = {"seconds": "double", "messages": "bigint"}
    return ranked.agg(
        F.coalesce(sessions, F.lit(0)).alias("sessions"),
        F.count_if(F.col("kind") == "sender").alias("senders"),
        *(F.max(of(kind, value)).cast(type_).alias(f"{kind}_max") for kind, type_ in whole.items()),
        F.coalesce(F.sum(F.when(value == 1, of("messages", n))), F.lit(0)).alias("single"),
        (F.sum(of("messages", value * n)) / sessions).alias("messages_mean"),
        *(
            F.min(of(kind, F.when(_reached(rank), value))).cast(type_).alias(f"{kind}_p{rank}")
            for kind, type_ in whole.items()
            for rank in (50, 95)
        ),
    )


def replies(events: DataFrame, within_s: float) -> DataFrame:
    """channel, seconds: one row for each message of a known sender.

    `seconds` is the time to the next message of another known sender in the same channel, in order of time
    and id; null if none came within `within_s`.
    """
    backwards = Window.partitionBy("channel").orderBy(F.desc("at"), F.desc("id"))
    # In descending order, later messages are the rows before, so the frame only grows. A frame of the rows
    # after would be computed again for each row.
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
    """channel (null: all channels), messages, answered, seconds p50/p90/p95/p99; from `replies`."""
    n = F.col("n")
    return (
        _ranked(_counts(found, "seconds"), "channel", "seconds")
        .groupBy("channel")
        .agg(
            F.sum(n).alias("messages"),
            F.coalesce(F.sum(F.when(F.col("seconds").isNotNull(), n)), F.lit(0)).alias("answered"),
            *_percentiles("seconds", (50, 90, 95, 99)),
        )
    )


def words(events: DataFrame) -> DataFrame:
    """channel (null: all channels), messages (with text), words, mean, words p50/p95, longest."""
    n, length = F.col("n"), F.col("words")
    return (
        _ranked(_counts(events.where(length.isNotNull()), "words"), "channel", "words")
        .groupBy("channel")
        .agg(
            F.sum(n).alias("messages"),
            F.sum(length * n).alias("words_in_all"),
            *_percentiles("words", (50, 95)),
            F.max(length).alias("longest"),
        )
        .select(
            "channel",
            "messages",
            F.col("words_in_all").alias("words"),
            (F.col("words_in_all") / F.col("messages")).alias("mean"),
            "words_p50",
            "words_p95",
            "longest",
        )
    )


def histogram(values: DataFrame, column: str, edges: Sequence[float]) -> DataFrame:
    """bin, n: `n` values have edges[bin] <= value < edges[bin + 1]. The last bin has no end; nulls have no
    bin.

    `edges` must ascend. Values below the first edge count into the first bin. Empty bins have no row.
    """
    assert all(low < high for low, high in pairwise(edges))
    place = F.lit(0)
    for edge in edges[1:]:
        place = place + (F.col(column) >= edge).cast("int")
    return values.where(F.col(column).isNotNull()).groupBy(place.alias("bin")).agg(F.count("*").alias("n"))


def histograms(values: DataFrame, edges: Mapping[str, Sequence[float]]) -> DataFrame:
    """column, bin, n: a histogram of each column with its own edges, in one job."""
    each = [
        histogram(values, column, own).select(F.lit(column).alias("column"), "bin", "n")
        for column, own in edges.items()
    ]
    return reduce(lambda all_, one: all_.unionByName(one), each)


def _seconds(start: str, end: str) -> Column:
    micros = F.unix_micros(F.col(end)) - F.unix_micros(F.col(start))
    return (micros / 1e6).alias("seconds")


def _counts(values: DataFrame, column: str) -> DataFrame:
    """channel (null: all channels), the column, n: how often each value occurs."""
    found = values.groupBy("channel", column).agg(F.count("*").alias("n"))
    total = found.groupBy(column).agg(F.sum("n").alias("n"))
    return found.unionByName(total.withColumn("channel", F.lit(None).cast("string")))


def _ranked(counts: DataFrame, key: str, column: str) -> DataFrame:
    """`counts` with two more columns: `values`, the number of values of the key, and `upto`, how many of them
    are not above this one. Nulls do not count. Spark sorts them on disk, so percentiles are exact for any
    size."""
    n = F.when(F.col(column).isNotNull(), F.col("n")).otherwise(0)
    whole = Window.partitionBy(key)
    upwards = _up_to_here(whole.orderBy(column))
    return counts.withColumn("upto", F.sum(n).over(upwards)).withColumn("values", F.sum(n).over(whole))


def _percentiles(column: str, ranks: Sequence[int]) -> list[Column]:
    """Percentiles from `_ranked`: the smallest value that reaches each rank."""
    return [F.min(F.when(_reached(rank), F.col(column))).alias(f"{column}_p{rank}") for rank in ranks]


def _reached(rank: int) -> Column:
    """Whether at least `rank` percent of the values are not above this one, from `_ranked`."""
    return F.col("upto") * 100 >= F.col("values") * rank


def _up_to_here(window: WindowSpec) -> WindowSpec:
    return window.rowsBetween(Window.unboundedPreceding, Window.currentRow)
