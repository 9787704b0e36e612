"""What the maintenance loop needs of the database."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class MaintenancePort(Protocol):
    """Retention and housekeeping; each call does a bounded piece and says how much it did."""

    async def roll_segment(self, max_age_s: float) -> bool: ...

    async def trim_channels(self, limit: int) -> int: ...

    async def drop_segment(self, settled: int) -> int | None: ...

    async def purge_rows(self, limit: int) -> int: ...

    async def purge_idempotency(self, limit: int) -> int: ...

    async def remove_unused(
        self, namespaces: Collection[str], absent_s: float, limit: int
    ) -> list[tuple[str, str]]:
        """Subscriptions of these namespaces that nobody used for as long as they say go: (namespace, name).
        Where nobody looked for `absent_s` seconds, nobody could: their time begins anew."""
        ...

    async def compact(self, min_bytes: int) -> int:
        """Rewrite queue tables of at least this size that are mostly dead rows; bytes given back."""
        ...

    async def holders(self) -> frozenset[str]:
        """The transactions that hold the publishing lock."""
        ...

    async def end_holders(self, holders: Collection[str]) -> tuple[int, int]:
        """End those of these transactions that still hold it: how many were ended, and how many the database
        did not allow to be."""
        ...
