"""How fast messages come: percentiles of messages a second, a minute, an hour, silence included.

Units without a message are neither made nor counted one by one: they are what lies between the first unit and
the last and has no row. How many units had how many messages is a small table, whatever the size of the log
(n different counts need n²/2 messages), so percentiles are taken from it here.
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
    """start (seconds since 1970), messages: one row for each second with something in it."""
    start = F.floor(F.unix_micros("at") / 1_000_000)
    return events.groupBy(start.alias("start")).agg(F.count("*").alias("messages"))


def per_unit(seconds: DataFrame, unit: str) -> DataFrame:
    """The same for each minute or hour, from `per_second` or from a shorter unit."""
    width = UNIT_S[unit]
    start = F.floor(F.col("start") / width) * width
    return seconds.groupBy(start.alias("start")).agg(F.sum("messages").alias("messages"))


def weights(units: dict[str, DataFrame]) -> DataFrame:
    """unit, messages, weight, first_at timestamp, last_at timestamp: how many units had so many messages, the
    first and the last of them."""
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
    """One unit of `weights`: unit, units, active, mean, p50/p95/p99 of all units from the first with a
    message to the last, active_p50/p95/p99 of those with one, max, max_at (the first unit that had so many).
    None where there is none."""
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
    """Between the two values whose ranks lie around `share`, as Spark's `percentile` has it; `counted` are
    values in order and how often each is there."""
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
    """period timestamp, messages: the highest count of `per_unit` within each hour, day, week, month or
    year."""
    start = F.col("start").cast("timestamp")
    return minutes.groupBy(F.date_trunc(period, start).alias("period")).agg(
        F.max("messages").alias("messages")
    )
