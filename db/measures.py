"""Metrics of durable subscriptions: many at once, each at a bounded cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from db.connect import Pool


@dataclass(frozen=True, slots=True)
class Measure:
    """Metrics of one subscription. `lag`: messages neither settled nor leased; `lag_seconds`: the age of the
    oldest of them; `oldest_seconds`: the same with leased messages; None if there is none. `lag` of a
    subscription with a filter, and `dead_letters`, are counted up to 10,000. `acked`, `redelivered`,
    `dead_lettered` and `removed` count since the subscription was created."""

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
    """Reads metrics from one pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def oldest(self, most: int) -> tuple[list[int], int]:
        """Ids of the `most` oldest subscriptions, and how many there are in all namespaces. Raises
        GaplessError."""
        row = await self._pool.fetchrow("oldest_subscriptions", most)
        return list(row["ids"]), int(row["count"])

    async def of(self, ids: list[int]) -> list[Measure]:
        """Metrics of those of these subscriptions that still exist, by id. Raises GaplessError."""
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
    """An age is never below 0, even if the clock was set back."""
    return None if value is None else max(0.0, value)
