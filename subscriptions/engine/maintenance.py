"""Retention and housekeeping: a loop around `run_once`. Every process may run it; for each piece of work the
database lets only one process win."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from subscriptions.domain.errors import GaplessError
from subscriptions.domain.watermark import PREPARED
from subscriptions.ports import MaintenancePort

log = logging.getLogger(__name__)
audit = logging.getLogger("gapless.audit")
"""Logs what cannot be undone: actions of administrators, and what expired without one."""

TRIM_LIMIT = 200
PURGE_LIMIT = 10_000
PURGE_ROUNDS = 20
REMOVE_LIMIT = 100
ABSENT_S = 60.0
ABSENT_ROUNDS = 3
"""A service that has not looked for this many rounds, and this many seconds, was away."""
COMPACT_BYTES = 16 * 1024 * 1024
"""Queue tables from this size on are checked for dead rows."""


OVERDUE_S = 15.0
"""The database's timeouts end a publisher after 5 s, and a decision that publishes after 10 s. A session that
holds the publishing lock for longer has removed these timeouts."""


class Overdue:
    """Finds transactions that have held the publishing lock for `limit_s` seconds. Memory is bounded by the
    number of connections of the database."""

    __slots__ = ("_limit_s", "_since")

    def __init__(self, limit_s: float = OVERDUE_S) -> None:
        self._limit_s = limit_s
        self._since: dict[str, float] = {}

    def observe(self, holders: frozenset[str], now: float) -> frozenset[str]:
        """Those of `holders` that every look has seen for `limit_s` seconds. Prepared transactions are left
        out: they have no session to end."""
        self._since = {h: self._since.get(h, now) for h in holders if not h.startswith(PREPARED)}
        return frozenset(h for h, since in self._since.items() if now - since >= self._limit_s)


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of what one round did."""

    rolled: bool
    trimmed_channels: int
    dropped_segments: int
    purged_rows: int
    purged_keys: int
    freed_bytes: int
    ended_publishers: int
    removed_subscriptions: int


class Maintenance:
    """Runs retention and housekeeping. `settled` returns the settled id: nothing at or below it can still
    appear. `namespaces` returns those in which subscriptions may be removed: none until their definitions are
    loaded."""

    def __init__(
        self,
        port: MaintenancePort,
        settled: Callable[[], int],
        *,
        every_s: float = 10.0,
        segment_age_s: float = 86_400.0,
        clock: Callable[[], float] = time.monotonic,
        namespaces: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._port = port
        self._settled = settled
        self._every_s = every_s
        self._segment_age_s = segment_age_s
        self._clock = clock
        self._namespaces = namespaces
        self._overdue = Overdue()

    async def run_once(self) -> Counts:
        """One round, bounded. Raises GaplessError when the database cannot be reached."""
        # First, because a holder of the publishing lock may block the rest.
        ended = await self._end_overdue()
        trimmed = await self._port.trim_channels(TRIM_LIMIT)
        dropped = 0
        while await self._port.drop_segment(self._settled()) is not None:
            dropped += 1
        purged = await self._repeat(self._port.purge_rows)
        keys = await self._repeat(self._port.purge_idempotency)
        rolled = await self._port.roll_segment(self._segment_age_s)
        freed = await self._port.compact(COMPACT_BYTES)
        removed = await self._remove_unused()
        return Counts(rolled, trimmed, dropped, purged, keys, freed, ended, removed)

    async def _remove_unused(self) -> int:
        if not (namespaces := self._namespaces()):
            return 0
        absent_s = max(ABSENT_S, ABSENT_ROUNDS * self._every_s)
        removed = await self._port.remove_unused(namespaces, absent_s, REMOVE_LIMIT)
        for namespace, name in removed:
            audit.info("subscription %s of %s was removed: unused for longer than expires", name, namespace)
        return len(removed)

    async def _end_overdue(self) -> int:
        overdue = self._overdue.observe(await self._port.holders(), self._clock())
        if not overdue:
            return 0
        ended, refused = await self._port.end_holders(overdue)
        log.warning("ended %d publishing transactions that were open for more than %g s", ended, OVERDUE_S)
        if refused:
            log.error(
                "%d publishing transactions have delayed readers for more than %g s and may not be ended:"
                " grant pg_signal_backend to the owner of the schema",
                refused,
                OVERDUE_S,
            )
        return ended

    async def _repeat(self, purge: Callable[[int], Awaitable[int]]) -> int:
        total = 0
        for _ in range(PURGE_ROUNDS):
            done = await purge(PURGE_LIMIT)
            total += done
            if done < PURGE_LIMIT:
                break
        return total

    async def run(self) -> None:
        """Run rounds until cancelled."""
        while True:
            try:
                counts = await self.run_once()
                if counts.dropped_segments or counts.rolled or counts.freed_bytes:
                    log.info("maintenance: %s", counts)
            except GaplessError as error:
                # The usual cause is a lock that another session held for too long. The next round tries
                # again.
                log.debug("maintenance is retried later: %s", error.detail)
            await asyncio.sleep(self._every_s)
