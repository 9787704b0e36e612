"""Implements `MarkerPort`: how far users have come in channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from db.channels import no_channel
from db.connect import Pool
from db.namespaces import Namespaces
from subscriptions.domain.marker import Marker, NewMarker, Unread
from subscriptions.domain.model import microseconds


class Markers:
    """Markers over one pool."""

    def __init__(self, pool: Pool, namespaces: Namespaces) -> None:
        self._pool = pool
        self._namespaces = namespaces

    async def mark(self, namespace: str, markers: Sequence[NewMarker]) -> list[tuple[Marker, bool]]:
        columns = [list(column) for column in zip(*markers, strict=True)]
        rows = await self._pool.fetch("move_markers", await self._namespaces.id(namespace), *columns)
        if rows[0]["id"] is None:
            raise no_channel(rows[0]["channel"])
        return [(_marker(row, row["channel"], row["name"]), row["moved"]) for row in rows]

    async def of_user(
        self, namespace: str, user: str, name: str, pattern: str | None, after: int, limit: int
    ) -> list[Unread]:
        namespace_id = await self._namespaces.id(namespace)
        rows = await self._pool.fetch("markers_of_user", namespace_id, user, name, after, pattern, limit)
        return [Unread(*row) for row in rows]

    async def of_channel(
        self, namespace: str, channel: str, name: str, after: str, limit: int
    ) -> list[Marker]:
        namespace_id = await self._namespaces.id(namespace)
        rows = await self._pool.fetch("markers_of_channel", namespace_id, channel, name, after, limit)
        if not rows:
            raise no_channel(channel)
        return [_marker(row, channel, name) for row in rows if row["user"] is not None]


def _marker(row: Any, channel: str, name: str) -> Marker:
    return Marker(channel, row["user"], name, row["id"], microseconds(row["updated_at"]))
