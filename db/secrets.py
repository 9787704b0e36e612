"""The secrets that sign receipts and hints, as a command sees them: never what they are."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from db.connect import Pool


class SecretTimes(NamedTuple):
    """From when on a secret signs, and until when it is accepted; None: until another one takes its place."""

    purpose: str
    signs_from: datetime
    accepted_until: datetime | None


class Secrets:
    """Shows and rotates secrets over one pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def all(self) -> list[SecretTimes]:
        """Those that are accepted, by purpose, the newest first."""
        return [SecretTimes(*row) for row in await self._pool.fetch("secret_times")]

    async def rotate(self, purpose: str, overlap_s: float) -> datetime:
        """Give a purpose a new secret; what others signed is accepted for `overlap_s` seconds more. Returns
        when the new one signs. Only the owner of the schema may do this."""
        when: datetime = await self._pool.fetchval("rotate_secret", purpose, timedelta(seconds=overlap_s))
        return when
