"""Small logs for the tests of the analysis, and slow, plain ways to count them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from gapless_spark.columns import spark_schema
from pyspark.sql import DataFrame, SparkSession

# A Monday.
START = datetime(2026, 11, 16, 9, 0, tzinfo=UTC)
EVENT_DDL = (
    "id bigint, channel string, seq bigint, type string, sender string, at timestamp, words int, bytes int"
)

Said = tuple[float, str, str | None]
"""Seconds after START, channel, sender."""


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def events_of(spark: SparkSession, said: Sequence[Said], words: int | None = 1) -> DataFrame:
    """Events in the order given, ids from 1."""
    rows = [
        (n, channel, n, "message", sender, at(seconds), words, 10)
        for n, (seconds, channel, sender) in enumerate(said, 1)
    ]
    return spark.createDataFrame(rows, EVENT_DDL)


def message(
    n: int, channel: str, data: Any, sender: str | None = None, seconds: float = 0
) -> tuple[Any, ...]:
    """A row as the source gives it."""
    text = None if data is None else json.dumps(data)
    return (n, channel, n, "message", None, text, {}, sender, at(seconds))


def messages_of(spark: SparkSession, rows: Sequence[tuple[Any, ...]]) -> DataFrame:
    return spark.createDataFrame(list(rows), spark_schema())


def plain_sessions(said: Sequence[Said], gap_s: float) -> list[tuple[str, float, int, int]]:
    """sender, seconds, messages, channels of each session."""
    open_now: dict[str, list[Said]] = {}
    done: list[list[Said]] = []
    for one in sorted((s for s in said if s[2] is not None), key=lambda s: s[0]):
        sender = str(one[2])
        if sender in open_now and one[0] - open_now[sender][-1][0] <= gap_s:
            open_now[sender].append(one)
        else:
            if sender in open_now:
                done.append(open_now[sender])
            open_now[sender] = [one]
    done += open_now.values()
    return sorted((str(s[0][2]), round(s[-1][0] - s[0][0], 3), len(s), len({x[1] for x in s})) for s in done)


def plain_replies(said: Sequence[Said], within_s: float) -> list[tuple[str, float | None]]:
    """channel and seconds of each message of a known sender."""
    known = sorted(
        ((s[0], n, s[1], s[2]) for n, s in enumerate(said) if s[2] is not None), key=lambda s: s[:2]
    )
    found = []
    for i, (seconds, _, channel, sender) in enumerate(known):
        later = (s for s in known[i + 1 :] if s[2] == channel and s[3] != sender)
        answer = next(later, None)
        waited = None if answer is None else round(answer[0] - seconds, 3)
        found.append((channel, waited if waited is not None and waited <= within_s else None))
    return sorted(found, key=str)


def percentile(values: Sequence[float], rank: float) -> float:
    """With linear interpolation between the two nearest ranks."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * rank
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
