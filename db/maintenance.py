"""Implements `MaintenancePort`: each call is one bounded statement in the database."""

from __future__ import annotations

from collections.abc import Collection

from prometheus_client import Counter

from db.connect import Pool

OVERDUE = Counter(
    "gapless_overdue_publishers_total",
    "Transactions that held the publishing lock for too long: ended, or refused by Postgres.",
    ["outcome"],
)
UNUSED = Counter(
    "gapless_subscriptions_expired_total", "Subscriptions removed because nobody used them for so long."
)


class Maintenance:
    """Housekeeping over one pool. A call that cannot get its lock in 200 ms gives up until the next round."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def roll_segment(self, max_age_s: float) -> bool:
        return bool(await self._pool.fetchval("roll_segment", max_age_s))

    async def trim_channels(self, limit: int) -> int:
        return int(await self._pool.fetchval("trim_channels", limit))

    async def drop_segment(self, settled: int) -> int | None:
        lower = await self._pool.fetchval("drop_segment", settled)
        return None if lower is None else int(lower)

    async def purge_rows(self, limit: int) -> int:
        return int(await self._pool.fetchval("purge_rows", limit))

    async def purge_idempotency(self, limit: int) -> int:
        return int(await self._pool.fetchval("purge_idempotency", limit))

    async def remove_unused(
        self, namespaces: Collection[str], absent_s: float, limit: int
    ) -> list[tuple[str, str]]:
        rows = await self._pool.fetch("remove_unused", sorted(namespaces), absent_s, limit)
        UNUSED.inc(len(rows))
        return [(row["namespace"], row["subscription"]) for row in rows]

    async def compact(self, min_bytes: int) -> int:
        return int(await self._pool.fetchval("compact", min_bytes))

    async def holders(self) -> frozenset[str]:
        return frozenset(await self._pool.fetchval("holders"))

    async def end_holders(self, holders: Collection[str]) -> tuple[int, int]:
        row = await self._pool.fetchrow("end_holders", list(holders))
        OVERDUE.labels("ended").inc(row["ended"])
        OVERDUE.labels("refused").inc(row["refused"])
        return int(row["ended"]), int(row["refused"])

    async def takes_writes(self) -> bool:
        """Whether the database is a primary that takes writes. Raises GaplessError `unavailable`."""
        return bool(await self._pool.fetchval("takes_writes"))

    async def schema_version(self) -> int:
        """The newest migration that ran. Raises GaplessError `unavailable`."""
        return int(await self._pool.fetchval("schema_version") or 0)
