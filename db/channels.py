"""Implements `ChannelPort`: channels with their settings."""

from __future__ import annotations

import json
from typing import Any

from db.connect import Pool
from db.namespaces import Namespaces
from db.rows import channel as channel_of
from db.rows import tag_list
from subscriptions.domain.delivery import Tags
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Channel, Retention


class Channels:
    """Reads and changes channels over one pool."""

    def __init__(self, pool: Pool, namespaces: Namespaces | None = None) -> None:
        self._pool = pool
        self._namespaces = namespaces or Namespaces(pool)

    async def get(self, namespace: str, name: str) -> Channel:
        return channel_of(await channel_row(self._pool, namespace, name, "described_channel"))

    async def page(self, namespace: str, pattern_regex: str | None, after: str, limit: int) -> list[Channel]:
        rows = await self._pool.fetch("channels", namespace, pattern_regex, after, limit)
        return [channel_of(row) for row in rows]

    async def put(
        self,
        namespace: str,
        name: str,
        retention: Retention,
        message_ttl: float | None,
        *,
        if_match: Tags | None = None,
        if_absent: bool = False,
    ) -> tuple[Channel, bool]:
        settings = {
            "max_age": retention.max_age,
            "max_messages": retention.max_messages,
            "message_ttl": message_ttl,
        }
        row = await self._set(namespace, name, settings, False, if_match, if_absent)
        if row["channel_id"] is None:
            detail = f"channel {name} does not exist, so it is not what If-Match names; nothing was done"
            raise GaplessError(Code.PRECONDITION_FAILED, detail)
        return await self.get(namespace, name), row["made"]

    async def patch(
        self, namespace: str, name: str, settings: dict[str, float | None], *, if_match: Tags | None = None
    ) -> Channel:
        row = await self._set(namespace, name, settings, True, if_match, False)
        if row["channel_id"] is None:
            raise no_channel(name)
        return await self.get(namespace, name)

    async def delete(self, namespace: str, name: str, *, if_match: Tags | None = None) -> None:
        namespace_id = await self._namespaces.id(namespace)
        if not await self._pool.fetchval("delete_channel", namespace_id, name, tag_list(if_match)):
            raise no_channel(name)

    async def _set(
        self,
        namespace: str,
        name: str,
        settings: dict[str, float | None],
        patch: bool,
        if_match: Tags | None,
        if_absent: bool,
    ) -> Any:
        asked = (json.dumps(settings), patch, tag_list(if_match), if_absent)
        return await self._pool.fetchrow("set_channel", await self._namespaces.id(namespace), name, *asked)


async def channel_row(pool: Pool, namespace: str, name: str, block: str = "channel") -> Any:
    """The row of a channel. Raises `channel_not_found`."""
    row = await pool.fetchrow(block, namespace, name)
    if row is None:
        raise no_channel(name)
    return row


def no_channel(name: str) -> GaplessError:
    return GaplessError(Code.CHANNEL_NOT_FOUND, f"channel {name} does not exist")
