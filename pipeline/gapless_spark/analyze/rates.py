"""How fast messages come: percentiles of messages a second, a minute, an hour, silence included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UNIT_S = {"second": 1, "minute": 60, "hour": 3600}
RANKS = (50, 95, 99)


def per_unit(events: DataFrame, unit: str) -> DataFrame:
    """start timestamp, messages: one row for each second, minute or hour since 1970 with something in it."""
    width = UNIT_S[unit]
    number = F.floor(F.unix_micros("at") / (width * 1_000_000))
    return events.groupBy((number * width).cast("timestamp").alias("start")).agg(
        F.count("*").alias("messages")
    )


def rate(counts: DataFrame, unit: str) -> DataFrame:
    """One row of `per_unit`: unit, units, active, mean, p50/p95/p99 of all units from the first with a
    message to the last, active_p50/p95/p99 of those with one, max, max_at (the first unit that had so many).

    Units without a message have no row; they are added up as one number, not made.
    """
    width = UNIT_S[unit]
    weights = counts.groupBy("messages").agg(F.count("*").alias("weight"))
    span = counts.agg(
        ((F.unix_micros(F.max("start")) - F.unix_micros(F.min("start"))) / (width * 1_000_000) + 1)
        .cast("bigint")
        .alias("units"),
        F.count("*").alias("active"),
        F.coalesce(F.sum("messages"), F.lit(0)).alias("sum"),
        F.max("messages").alias("max"),
        # Of equal ones the earliest.
        F.max_by("start", F.struct("messages", -F.unix_micros("start"))).alias("max_at"),
    )
    silent = span.where(F.col("units") > F.col("active")).select(
        F.lit(0).cast("bigint").alias("messages"), (F.col("units") - F.col("active")).alias("weight")
    )
    shares = [rank / 100 for rank in RANKS]
    everything = weights.unionByName(silent).agg(
        F.percentile("messages", shares, F.col("weight")).alias("all")
    )
    active = weights.agg(F.percentile("messages", shares, F.col("weight")).alias("some"))
    return (
        span.where(F.col("active") > 0)
        .crossJoin(everything)
        .crossJoin(active)
        .select(
            F.lit(unit).alias("unit"),
            "units",
            "active",
            (F.col("sum") / F.col("units")).alias("mean"),
            *(F.col("all")[i].alias(f"p{rank}") for i, rank in enumerate(RANKS)),
            *(F.col("some")[i].alias(f"active_p{rank}") for i, rank in enumerate(RANKS)),
            "max",
            "max_at",
        )
    )


def peaks(counts: DataFrame, period: str) -> DataFrame:
    """period timestamp, messages: the highest count of `per_unit` within each hour, day, week, month or
    year."""
    return counts.groupBy(F.date_trunc(period, "start").alias("period")).agg(
        F.max("messages").alias("messages")
    )
