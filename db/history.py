"""Implements `HistoryPort`: pages of history, and channels with their settings."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from typing import Any

from db.connect import Pool
from db.namespaces import Namespaces
from db.reader import PAGE_BYTES
from db.rows import channel as channel_of
from db.rows import message as message_of
from db.rows import tag_list
from subscriptions.domain.delivery import Tags
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import MAX_ID, Channel, Message, Retention
from subscriptions.ports import HistoryQuery

EXPORT_BATCH = 1000
EXPORT_BYTES = 256 * 1024
"""Payload of one batch of an export: the reader may be slow, and a batch is held in several forms."""


class History:
    """Reads history and channels from one pool."""

    def __init__(self, pool: Pool, namespaces: Namespaces | None = None) -> None:
        self._pool = pool
        self._namespaces = namespaces or Namespaces(pool)

    async def history(self, query: HistoryQuery) -> tuple[list[Message], bool]:
        """A page; see `HistoryPort`."""
        row = await self._channel_row(query.namespace, query.channel)
        _refuse_expired(query, row)
        after = max(query.after or 0, row["trimmed_id"], await self._since(query.since))
        return await self._page(replace(query, after=after), row["id"], follows=query.after is not None)

    async def export(self, query: HistoryQuery) -> AsyncIterator[list[Message]]:
        """All messages that the query asks for, batch by batch. If retention removes messages before a slow
        reader gets them, it ends with `cursor_expired`."""
        row = await self._channel_row(query.namespace, query.channel)
        _refuse_expired(query, row)
        after = max(query.after or 0, row["trimmed_id"], await self._since(query.since))
        before = query.before
        more, left, follows = True, query.limit, query.after is not None
        while more and left > 0:
            part = replace(query, after=after, before=before, limit=min(EXPORT_BATCH, left))
            messages, more = await self._page(part, row["id"], follows=follows, max_bytes=EXPORT_BYTES)
            if messages:
                left -= len(messages)
                follows = True
                if query.ascending:
                    after = messages[-1].id
                else:
                    before = messages[-1].id
                yield messages

    async def message(self, namespace: str, channel: str, message_id: int) -> Message:
        row = await self._channel_row(namespace, channel)
        found = await self._pool.fetchrow("message", row["id"], message_id, row["trimmed_id"])
        if found is None:
            raise GaplessError(Code.MESSAGE_NOT_FOUND, f"channel {channel} has no message {message_id}")
        return message_of(found, channel)

    async def channel(self, namespace: str, name: str) -> Channel:
        return channel_of(await self._channel_row(namespace, name, "described_channel"))

    async def channels(
        self, namespace: str, pattern_regex: str | None, after: str, limit: int
    ) -> list[Channel]:
        rows = await self._pool.fetch("channels", namespace, pattern_regex, after, limit)
        return [channel_of(row) for row in rows]

    async def put_channel(
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
        return await self.channel(namespace, name), row["made"]

    async def patch_channel(
        self, namespace: str, name: str, settings: dict[str, float | None], *, if_match: Tags | None = None
    ) -> Channel:
        row = await self._set(namespace, name, settings, True, if_match, False)
        if row["channel_id"] is None:
            raise _no_channel(name)
        return await self.channel(namespace, name)

    async def delete_channel(self, namespace: str, name: str, *, if_match: Tags | None = None) -> None:
        namespace_id = await self._namespaces.id(namespace)
        if not await self._pool.fetchval("delete_channel", namespace_id, name, tag_list(if_match)):
            raise _no_channel(name)

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

    async def _channel_row(self, namespace: str, name: str, block: str = "channel") -> Any:
        row = await self._pool.fetchrow(block, namespace, name)
        if row is None:
            raise _no_channel(name)
        return row

    async def _since(self, time: datetime | None) -> int:
        """An id to begin at, so that a query by time does not read all earlier messages."""
        return 0 if time is None else int(await self._pool.fetchval("id_before", time))

    async def _page(
        self, query: HistoryQuery, channel_id: int, *, follows: bool, max_bytes: int = PAGE_BYTES
    ) -> tuple[list[Message], bool]:
        """A page, and whether more follows. `follows`: the reader has the messages before this page, so a
        page whose beginning, or whole, was removed by retention would leave a hole."""
        rows = await self._pool.fetch(
            "history_up" if query.ascending else "history_down",
            channel_id,
            query.after or 0,
            MAX_ID if query.before is None else query.before,
            query.since,
            list(query.types) or None,
            list(query.keys) or None,
            query.limit + 1,
            max_bytes,
        )
        floor = rows[0]["trimmed_id"]
        if floor is None:
            raise _no_channel(query.channel)
        if query.ascending and follows and (query.after or 0) < floor:
            raise GaplessError(Code.CURSOR_EXPIRED, "retention overtook this reader")
        rows = [row for row in rows if row["id"] is not None]
        messages = [message_of(row, query.channel) for row in rows[: query.limit]]
        return messages, len(rows) > query.limit or sum(row["size"] for row in rows) >= max_bytes


def _refuse_expired(query: HistoryQuery, row: Any) -> None:
    """Raise `cursor_expired` if the query's cursor is below messages that retention removed."""
    if query.after is not None and query.after < row["trimmed_id"] and query.ascending:
        raise GaplessError(
            Code.CURSOR_EXPIRED,
            f"retention removed messages after {query.after}; the oldest kept has seq {row['first_seq']}",
        )


def _no_channel(name: str) -> GaplessError:
    return GaplessError(Code.CHANNEL_NOT_FOUND, f"channel {name} does not exist")
