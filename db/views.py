"""Implements `ViewPort`: a channel as it is after all changes, and the changes of one message."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from db.channels import channel_row, no_channel
from db.connect import Pool
from db.history import EXPORT_BATCH, EXPORT_BYTES, arguments_of, refuse_expired, refuse_overtaken, since
from db.reader import PAGE_BYTES
from db.rows import message as message_of
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Message, Original
from subscriptions.ports import HistoryQuery, LatestPage


class Views:
    """Reads views from one pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def latest(self, query: HistoryQuery, changed_after: int | None = None) -> LatestPage:
        row = await channel_row(self._pool, query.namespace, query.channel)
        refuse_expired(query, row)
        after = max(query.after or 0, row["trimmed_id"], await since(self._pool, query.since))
        part, follows = replace(query, after=after), query.after is not None
        return await self._page(part, row["id"], changed_after, follows=follows)

    async def export(
        self, query: HistoryQuery, changed_after: int | None = None
    ) -> AsyncIterator[list[Original]]:
        row = await channel_row(self._pool, query.namespace, query.channel)
        refuse_expired(query, row)
        after = max(query.after or 0, row["trimmed_id"], await since(self._pool, query.since))
        part, left, follows = replace(query, after=after), query.limit, query.after is not None
        while left > 0:
            part = replace(part, limit=min(EXPORT_BATCH, left))
            page = await self._page(part, row["id"], changed_after, follows=follows, max_bytes=EXPORT_BYTES)
            if page.originals:
                follows = True
                left -= len(page.originals)
                last = page.originals[-1].message.id
                part = replace(part, after=last) if query.ascending else replace(part, before=last)
                yield page.originals
            if not page.has_more:
                return

    async def original(self, namespace: str, channel: str, message_id: int) -> Original:
        row = await channel_row(self._pool, namespace, channel)
        found = await self._pool.fetchrow("latest_message", row["id"], message_id, row["trimmed_id"])
        if found is None:
            raise GaplessError(Code.MESSAGE_NOT_FOUND, f"channel {channel} has no original {message_id}")
        return _original(found, channel)

    async def changes(
        self, namespace: str, channel: str, message_id: int, actions: Sequence[str], after: int, limit: int
    ) -> tuple[list[Message], bool]:
        row = await channel_row(self._pool, namespace, channel)
        arguments = (message_id, after, limit + 1, list(actions), PAGE_BYTES)
        rows = await self._pool.fetch("changes", row["id"], *arguments)
        is_cut = sum(each["size"] for each in rows) >= PAGE_BYTES
        return [message_of(each, channel) for each in rows[:limit]], len(rows) > limit or is_cut

    async def _page(
        self,
        query: HistoryQuery,
        channel_id: int,
        changed_after: int | None,
        *,
        follows: bool,
        max_bytes: int = PAGE_BYTES,
    ) -> LatestPage:
        arguments = arguments_of(replace(query, changes="none"), channel_id, max_bytes)
        if changed_after is not None:
            rows = await self._pool.fetch("changed", *arguments, changed_after)
        else:
            rows = await self._pool.fetch("latest_up" if query.ascending else "latest_down", *arguments)
        if rows[0]["last_id"] is None:
            raise no_channel(query.channel)
        refuse_overtaken(query, rows[0]["trimmed_id"], follows=follows)
        head = rows[0]["last_id"]
        rows = [row for row in rows if row["id"] is not None]
        has_more = len(rows) > query.limit or sum(row["size"] for row in rows) >= max_bytes
        return LatestPage([_original(row, query.channel) for row in rows[: query.limit]], has_more, head)


def _original(row: Any, channel: str) -> Original:
    message = message_of(row, channel)
    annotations = (row["annotations"] or "{}").encode()
    version, is_deleted = row["version"] or message.id, row["deleted"] is True
    return Original(message, version, is_deleted, row["replies"] or 0, annotations)
