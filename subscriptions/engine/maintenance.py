"""Retention and housekeeping: a loop around `run_once`. Every process may run it; the database lets one
win each piece."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from subscriptions.domain.errors import GaplessError
from subscriptions.ports import MaintenancePort

log = logging.getLogger(__name__)

TRIM_LIMIT = 200
PURGE_LIMIT = 10_000
PURGE_ROUNDS = 20
COMPACT_BYTES = 16 * 1024 * 1024
"""Tables of what is under way are looked at from this size on."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What one round did."""

    rolled: bool
    trimmed_channels: int
    dropped_segments: int
    purged_rows: int
    purged_keys: int
    freed_bytes: int


class Maintenance:
    """`settled` tells the watermark: nothing at or below it can still appear."""

    def __init__(
        self,
        port: MaintenancePort,
        settled: Callable[[], int],
        *,
        every_s: float = 10.0,
        segment_age_s: float = 86_400.0,
    ) -> None:
        self._port = port
        self._settled = settled
        self._every_s = every_s
        self._segment_age_s = segment_age_s

    async def run_once(self) -> Counts:
        """One round, bounded. Raises GaplessError when the database cannot be reached."""
        trimmed = await self._port.trim_channels(TRIM_LIMIT)
        dropped = 0
        while await self._port.drop_segment(self._settled()) is not None:
            dropped += 1
        purged = await self._repeat(self._port.purge_rows)
        keys = await self._repeat(self._port.purge_idempotency)
        rolled = await self._port.roll_segment(self._segment_age_s)
        freed = await self._port.compact(COMPACT_BYTES)
        return Counts(rolled, trimmed, dropped, purged, keys, freed)

    async def _repeat(self, purge: Callable[[int], Awaitable[int]]) -> int:
        total = 0
        for _ in range(PURGE_ROUNDS):
            done = await purge(PURGE_LIMIT)
            total += done
            if done < PURGE_LIMIT:
                break
        return total

    async def run(self) -> None:
        """Rounds until cancelled."""
        while True:
            try:
                counts = await self.run_once()
                if counts.dropped_segments or counts.rolled or counts.freed_bytes:
                    log.info("maintenance: %s", counts)
            except GaplessError as error:
                # Mostly a lock that others held for too long: there is no hurry.
                log.debug("maintenance put off: %s", error.detail)
            await asyncio.sleep(self._every_s)
