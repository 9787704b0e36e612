"""Implements `ReadPort`: pages, heads and ticks for live readers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import asyncpg

from db.connect import Pool
from db.queries import load
from db.rows import message
from subscriptions.domain.errors import unavailable
from subscriptions.domain.model import Message
from subscriptions.domain.pattern import to_regex
from subscriptions.domain.selection import Selection
from subscriptions.domain.watermark import Tick
from subscriptions.ports import Head, Lost, Page, Place, Span, Trim

PAGE_BYTES = 4 * 1024 * 1024
"""A page ends with the message that reaches this many bytes of payload, even below its limit of messages."""

FRESH_CHANNELS = 4000
"""When channels are read from their own starts, one page begins at most this many of them."""

STRETCH = 5000
"""How many messages of the whole log one page of many channels looks through."""

FENCED_IDS = 2**50
"""From here on ids come from behind a fence: they follow the clock, and so many microseconds had passed in
2005."""

_MESSAGE, _HEAD, _TRIM = range(3)
_END = _HEAD


class Reader:
    """Reads for live subscriptions. The pool `control` serves ticks, heads and spans, so that many slow
    history pages in the pool `pages` never delay a live reader."""

    def __init__(self, pages: Pool, control: Pool) -> None:
        self._pages = pages
        self._control = control
        self._fences_sql = load()["fences"]
        self._fences: int | None = None

    async def tick(self) -> Tick:
        (row,) = await self._control.fetch("tick", self._fences, check=self._is_not_of_the_past)
        self._fences = row["fences"]
        holders = frozenset(row["holders"])
        return Tick(
            row["last_id"],
            int(row["lsn"]),
            int(row["flushed"]),
            holders,
            row["life"],
            row["fences"],
            row["epoch"],
            row["newest"],
        )

    async def _is_not_of_the_past(self, rows: list[Any], connection: asyncpg.Connection) -> None:
        """Raise `unavailable` on an old connection that leads to a primary that was replaced."""
        if self._fences is not None and rows[0]["fences"] < self._fences:
            raise unavailable("this connection leads to a database that was replaced")

    async def _is_current(self, rows: list[Any], connection: asyncpg.Connection) -> None:
        """Raise `unavailable` if a fence was put up since the last tick: the rows may be of another
        history."""
        if self._fences is not None and await connection.fetchval(self._fences_sql) != self._fences:
            raise unavailable("the log's history may have changed")

    async def disown(self, epoch: str, known: int) -> None:
        await self._control.fetch("disown", epoch, known)

    async def hint_secret(self) -> bytes:
        """The log's secret, which signs hints and receipts."""
        return bytes(await self._control.fetchval("hint_secret"))

    async def lost(self, selection: Selection, cursor: int) -> Lost | None:
        if not self._fences and cursor < FENCED_IDS:
            return None
        row = await self._pages.fetchrow("lost", selection.namespace, selection.single, cursor)
        if row is None or row["first_id"] > cursor:
            return None
        return Lost(row["first_id"], cursor, row["stands"])

    async def heads(self, channels: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Head]:
        names = [n for n, _ in channels], [c for _, c in channels]
        rows = await self._control.fetch("heads", *names, check=self._is_current)
        return {(r["namespace"], r["name"]): Head(r["id"], r["last_id"], r["last_seq"]) for r in rows}

    async def heads_above(self, selection: Selection, after: int) -> dict[str, int]:
        rows = await self._pages.fetch(
            "heads_above",
            selection.namespace,
            list(selection.names),
            _regex(selection),
            after,
            check=self._is_current,
        )
        return {r["name"]: r["last_id"] for r in rows}

    async def page(
        self, selection: Selection, after: int, upto: int | None, limit: int, max_bytes: int = PAGE_BYTES
    ) -> Page:
        types, keys = list(selection.types) or None, list(selection.keys) or None
        if selection.single is not None:
            rows = await self._pages.fetch(
                "page_channel",
                selection.namespace,
                selection.single,
                after,
                limit,
                types,
                keys,
                max_bytes,
                check=self._is_current,
            )
            return _channel_page(rows, after, limit, max_bytes)
        assert upto is not None, "several channels are read up to the watermark"
        rows = await self._pages.fetch(
            "page_channels",
            selection.namespace,
            list(selection.names),
            _regex(selection),
            after,
            upto,
            limit,
            types,
            keys,
            max_bytes,
            STRETCH,
            check=self._is_current,
        )
        end = next(r["id"] for r in rows if r["kind"] == _END)
        return _page(rows, after, end, limit, max_bytes)

    async def span(self, after: int, upto: int, limit: int) -> Span:
        *rows, end = await self._control.fetch("span", after, upto, limit, PAGE_BYTES, check=self._is_current)
        messages = tuple((r["namespace"], message(r, r["channel"])) for r in rows)
        return Span(messages, end["id"], trimmed=end["seq"] > after)

    async def last(self, selection: Selection, count: int, upto: int) -> dict[int, int]:
        rows = await self._pages.fetch(
            "last_starts",
            selection.namespace,
            list(selection.names),
            _regex(selection),
            count,
            upto,
            list(selection.types) or None,
            list(selection.keys) or None,
            check=self._is_current,
        )
        return {r["channel_id"]: r["start"] for r in rows}

    async def page_from(
        self,
        selection: Selection,
        starts: dict[int, int],
        after: int,
        upto: int,
        limit: int,
        max_bytes: int = PAGE_BYTES,
    ) -> Page:
        # A channel has no messages up to its own start, so the page may end where the next channel begins.
        ahead = sorted(start for start in starts.values() if after < start < upto)
        if len(ahead) > FRESH_CHANNELS:
            upto = ahead[FRESH_CHANNELS]
        begun = [(channel_id, start) for channel_id, start in starts.items() if start < upto]
        rows = await self._pages.fetch(
            "page_from",
            [channel_id for channel_id, _ in begun],
            [start for _, start in begun],
            after,
            upto,
            limit,
            list(selection.types) or None,
            list(selection.keys) or None,
            max_bytes,
            check=self._is_current,
        )
        return _page(rows, after, upto, limit, max_bytes)

    async def since(self, selection: Selection, time: datetime) -> int | None:
        first = await self._pages.fetchval(
            "first_since", selection.namespace, list(selection.names), _regex(selection), time
        )
        return None if first is None else int(first) - 1

    async def seq_at(self, channel_id: int, message_id: int) -> int:
        return int(await self._pages.fetchval("seq_at", channel_id, message_id))

    async def place_at(self, namespace: str, channel: str, seq: int) -> Place | None:
        rows = await self._pages.fetch("place_at", namespace, channel, seq, check=self._is_current)
        return Place(**rows[0]) if rows else None


def _regex(selection: Selection) -> str | None:
    return "|".join(to_regex(p) for p in selection.patterns) or None


def _messages(rows: list[Any]) -> tuple[Message, ...]:
    return tuple(message(r, r["channel"]) for r in rows if r["kind"] == _MESSAGE)


def _trims(rows: list[Any]) -> tuple[Trim, ...]:
    return tuple(Trim(r["channel"], r["channel_id"], r["seq"], r["id"]) for r in rows if r["kind"] == _TRIM)


def _is_cut(rows: list[Any], messages: int, limit: int, max_bytes: int) -> bool:
    """Whether these rows may have been cut: they reach the limit of messages or of bytes."""
    return messages == limit or sum(r["size"] for r in rows) >= max_bytes


def _page(rows: list[Any], after: int, upto: int, limit: int, max_bytes: int) -> Page:
    messages = _messages(rows)
    complete_to = messages[-1].id if _is_cut(rows, len(messages), limit, max_bytes) else upto
    return Page(after, complete_to, 0, messages, _trims(rows))


def _channel_page(rows: list[Any], after: int, limit: int, max_bytes: int) -> Page:
    messages = _messages(rows)
    head = next((r for r in rows if r["kind"] == _HEAD), None)
    if _is_cut(rows, len(messages), limit, max_bytes):
        assert head is not None, "messages come with their channel"
        return Page(after, messages[-1].id, messages[-1].seq, messages, _trims(rows), head["channel_id"])
    if head is None:
        return Page(after, after, 0, ())
    return Page(after, max(after, head["id"]), head["seq"], messages, _trims(rows), head["channel_id"])
