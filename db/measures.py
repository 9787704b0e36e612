"""What durable subscriptions stand at, for metrics: many at once, each at a bounded cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from db.connect import Pool


@dataclass(frozen=True, slots=True)
class Measure:
    """One subscription. `lag` is neither settled nor leased, and `lag_seconds` how long its oldest has been;
    `oldest_seconds` counts what is leased too; None where there is nothing. `lag` of one with a filter, and
    `dead_letters`, are counted to 10,000. What was done is counted since the subscription was made."""

    namespace: str
    subscription: str
    lag: int
    lag_seconds: float | None
    oldest_seconds: float | None
    in_flight: int
    dead_letters: int
    acked: int
    redelivered: int
    dead_lettered: int
    removed: int


class Measures:
    """Over one pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def oldest(self, most: int) -> tuple[list[int], int]:
        """Which were made first, and how many there are in all namespaces. Raises GaplessError."""
        row = await self._pool.fetchrow("oldest_subscriptions", most)
        return list(row["ids"]), int(row["count"])

    async def of(self, ids: list[int]) -> list[Measure]:
        """Those that are still there, by id. Raises GaplessError."""
        return [_measure(row) for row in await self._pool.fetch("measured_subscriptions", ids)]


def _measure(row: Any) -> Measure:
    return Measure(
        namespace=row["namespace"],
        subscription=row["subscription"],
        lag=row["lag"],
        lag_seconds=_seconds(row["lag_seconds"]),
        oldest_seconds=_seconds(row["oldest_seconds"]),
        in_flight=row["leased"],
        dead_letters=row["dead_letters"],
        acked=row["acked"],
        redelivered=row["redelivered"],
        dead_lettered=row["dead_lettered"],
        removed=row["removed"],
    )


def _seconds(value: float | None) -> float | None:
    """A clock that was set back makes nothing younger than new."""
    return None if value is None else max(0.0, value)
