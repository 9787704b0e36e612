"""The port for maintenance: what its loop needs from the database."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class MaintenancePort(Protocol):
    """Retention and housekeeping. Each call does a bounded piece of work and returns how much it did.

    `tests/contract` does not run it in memory: segments, dead rows and sessions are only in a database."""

    async def roll_segment(self, max_age_s: float) -> bool: ...

    async def trim_channels(self, limit: int) -> int: ...

    async def drop_segment(self, settled: int) -> int | None: ...

    async def purge_rows(self, limit: int) -> int: ...

    async def purge_idempotency(self, limit: int) -> int: ...

    async def remove_unused(
        self, namespaces: Collection[str], absent_s: float, limit: int
    ) -> list[tuple[str, str]]:
        """Remove the subscriptions of these namespaces that were unused for as long as their `expires` says;
        returns (namespace, name) pairs. If no process looked for `absent_s` seconds, the service was away and
        they could not be used: their time starts again."""
        ...

    async def compact(self, min_bytes: int) -> int:
        """Rewrite queue tables of at least this size that are mostly dead rows; returns the bytes freed."""
        ...

    async def holders(self) -> frozenset[str]:
        """The transactions that hold the publishing lock."""
        ...

    async def end_holders(self, holders: Collection[str]) -> tuple[int, int]:
        """End those of these transactions that still hold the publishing lock. Returns how many were ended,
        and how many the database did not allow to end."""
        ...
