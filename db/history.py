"""Implements `HistoryPort`: pages of history."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from typing import Any

from db.channels import channel_row, no_channel
from db.connect import Pool
from db.reader import PAGE_BYTES
from db.rows import filter_of
from db.rows import message as message_of
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import MAX_ID, Message
from subscriptions.ports import HistoryPage, HistoryQuery

EXPORT_BATCH = 1000
EXPORT_BYTES = 256 * 1024
"""Payload of one batch of an export: the reader may be slow, and a batch is held in several forms."""


class History:
    """Reads history from one pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def history(self, query: HistoryQuery) -> HistoryPage:
        """A page; see `HistoryPort`."""
        row = await channel_row(self._pool, query.namespace, query.channel)
        refuse_expired(query, row)
        after = max(query.after or 0, row["trimmed_id"], await since(self._pool, query.since))
        return await self._page(replace(query, after=after), row["id"], follows=query.after is not None)

    async def export(self, query: HistoryQuery) -> AsyncIterator[list[Message]]:
        """All messages that the query asks for, batch by batch. If retention removes messages before a slow
        reader gets them, it ends with `cursor_expired`."""
        row = await channel_row(self._pool, query.namespace, query.channel)
        refuse_expired(query, row)
        after = max(query.after or 0, row["trimmed_id"], await since(self._pool, query.since))
        before = query.before
        more, left, follows = True, query.limit, query.after is not None
        while more and left > 0:
            part = replace(query, after=after, before=before, limit=min(EXPORT_BATCH, left))
            messages, more, _ = await self._page(part, row["id"], follows=follows, max_bytes=EXPORT_BYTES)
            if messages:
                left -= len(messages)
                follows = True
                if query.ascending:
                    after = messages[-1].id
                else:
                    before = messages[-1].id
                yield messages

    async def message(self, namespace: str, channel: str, message_id: int) -> Message:
        row = await channel_row(self._pool, namespace, channel)
        found = await self._pool.fetchrow("message", row["id"], message_id, row["trimmed_id"])
        if found is None:
            raise GaplessError(Code.MESSAGE_NOT_FOUND, f"channel {channel} has no message {message_id}")
        return message_of(found, channel)

    async def _page(
        self, query: HistoryQuery, channel_id: int, *, follows: bool, max_bytes: int = PAGE_BYTES
    ) -> HistoryPage:
        """A page. `follows`: the reader has the messages before this page, so a page whose beginning, or
        whole, was removed by retention would leave a hole."""
        rows = await self._pool.fetch(
            "history_up" if query.ascending else "history_down", *arguments_of(query, channel_id, max_bytes)
        )
        floor, head = rows[0]["trimmed_id"], rows[0]["last_id"]
        if floor is None:
            raise no_channel(query.channel)
        refuse_overtaken(query, floor, follows=follows)
        rows = [row for row in rows if row["id"] is not None]
        messages = [message_of(row, query.channel) for row in rows[: query.limit]]
        has_more = len(rows) > query.limit or sum(row["size"] for row in rows) >= max_bytes
        return HistoryPage(messages, has_more, head)


async def since(pool: Pool, time: datetime | None) -> int:
    """An id to begin at, so that a query by time does not read all earlier messages."""
    return 0 if time is None else int(await pool.fetchval("id_before", time))


def arguments_of(query: HistoryQuery, channel_id: int, max_bytes: int) -> tuple[object, ...]:
    """What the statements for a page take."""
    return (
        channel_id,
        query.after or 0,
        MAX_ID if query.before is None else query.before,
        query.since,
        *filter_of(query),
        query.limit + 1,
        max_bytes,
    )


def refuse_overtaken(query: HistoryQuery, floor: int, *, follows: bool) -> None:
    """Raise `cursor_expired` if retention removed the beginning of a page that follows another one."""
    if query.ascending and follows and (query.after or 0) < floor:
        raise GaplessError(Code.CURSOR_EXPIRED, "retention overtook this reader")


def refuse_expired(query: HistoryQuery, row: Any) -> None:
    """Raise `cursor_expired` if the query's cursor is below messages that retention removed."""
    if query.after is not None and query.after < row["trimmed_id"] and query.ascending:
        raise GaplessError(
            Code.CURSOR_EXPIRED,
            f"retention removed messages after {query.after}; the oldest kept has seq {row['first_seq']}",
        )
