"""Publish rates: percentiles of messages per second, minute and hour, silent ones included.

Units without a message have no rows. Their number follows from the first and the last unit. A table of how
many units had how many messages is small for a log of any size (n different counts need n²/2 messages), so
this process takes the percentiles from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import ceil, floor
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from gapless_spark.analyze.findings import Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UNIT_S = {"second": 1, "minute": 60, "hour": 3600}
RANKS = (50, 95, 99)
RATES_DDL = (
    "unit string, units bigint, active bigint, mean double, p50 double, p95 double, p99 double, "
    "active_p50 double, active_p95 double, active_p99 double, max bigint, max_at timestamp"
)


def per_second(events: DataFrame) -> DataFrame:
    """start (seconds since 1970), messages: one row for each second with a message."""
    start = F.floor(F.unix_micros("at") / 1_000_000)
    return events.groupBy(start.alias("start")).agg(F.count("*").alias("messages"))


def per_unit(seconds: DataFrame, unit: str) -> DataFrame:
    """start, messages: one row for each minute or hour with a message, from the rows of a shorter unit."""
    width = UNIT_S[unit]
    start = F.floor(F.col("start") / width) * width
    return seconds.groupBy(start.alias("start")).agg(F.sum("messages").alias("messages"))


def weights(units: dict[str, DataFrame]) -> DataFrame:
    """unit, messages, weight, first_at timestamp, last_at timestamp: `weight` units had so many messages; the
    times are of the first and the last of them."""
    found = [
        counts.groupBy(F.lit(unit).alias("unit"), "messages").agg(
            F.count("*").alias("weight"),
            F.min("start").cast("timestamp").alias("first_at"),
            F.max("start").cast("timestamp").alias("last_at"),
        )
        for unit, counts in units.items()
    ]
    # One job for all units.
    return reduce(lambda all_, one: all_.unionByName(one), found)


def rate(found: Sequence[Row], unit: str) -> Row | None:
    """The rates of one unit, from `weights`; None if there is no message.

    Fields: unit; units (from the first with a message to the last); active (units with a message); mean and
    p50/p95/p99 over all units; active_p50/p95/p99 over active ones; max; max_at (the first unit with max).
    """
    own = sorted((row for row in found if row["unit"] == unit), key=lambda row: int(row["messages"]))
    if not own:
        return None
    span = max(row["last_at"] for row in own) - min(row["first_at"] for row in own)
    units = int(span.total_seconds()) // UNIT_S[unit] + 1
    some = [(int(row["messages"]), int(row["weight"])) for row in own]
    active = sum(weight for _, weight in some)
    everything = [(0, units - active), *some] if units > active else some
    return {
        "unit": unit,
        "units": units,
        "active": active,
        "mean": sum(messages * weight for messages, weight in some) / units,
        **{f"p{rank}": percentile(everything, rank / 100) for rank in RANKS},
        **{f"active_p{rank}": percentile(some, rank / 100) for rank in RANKS},
        "max": own[-1]["messages"],
        "max_at": own[-1]["first_at"],
    }


def percentile(counted: Sequence[tuple[int, int]], share: float) -> float:
    """The percentile at `share` (0 to 1), interpolated between two values as Spark's `percentile` does.
    `counted` has the values in ascending order, each with its number of occurrences."""
    place = (sum(weight for _, weight in counted) - 1) * share
    low, high = _at(counted, floor(place)), _at(counted, ceil(place))
    return float(low) if low == high else (ceil(place) - place) * low + (place - floor(place)) * high


def _at(counted: Sequence[tuple[int, int]], rank: int) -> int:
    passed = 0
    for value, weight in counted:
        passed += weight
        if rank < passed:
            return value
    raise AssertionError("a rank beyond the values")


def peaks(minutes: DataFrame, period: str) -> DataFrame:
    """period timestamp, messages: the highest count of `per_unit` in each hour, day, week, month or year."""
    start = F.col("start").cast("timestamp")
    return minutes.groupBy(F.date_trunc(period, start).alias("period")).agg(
        F.max("messages").alias("messages")
    )
