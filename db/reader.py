"""Implements `ReadPort`: pages, heads and ticks for live readers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from db.connect import Pool
from db.rows import message
from subscriptions.domain.model import Message
from subscriptions.domain.pattern import to_regex
from subscriptions.domain.selection import Selection
from subscriptions.domain.watermark import Tick
from subscriptions.ports import Head, Page, Span, Trim

PAGE_BYTES = 4 * 1024 * 1024
"""A page ends with the message that reaches this many bytes of payload, whatever its limit in messages."""

STRETCH = 5000
"""Messages of the whole log that one page of many channels looks through."""

_MESSAGE, _HEAD, _TRIM = range(3)
_END = _HEAD


class Reader:
    """Reads for live subscriptions. `control` serves what keeps them live (ticks, heads, spans), so that many
    slow history pages in `pages` never make a live reader late."""

    def __init__(self, pages: Pool, control: Pool) -> None:
        self._pages = pages
        self._control = control

    async def tick(self) -> Tick:
        row = await self._control.fetchrow("tick")
        holders = frozenset(row["holders"])
        return Tick(row["last_id"], int(row["lsn"]), int(row["flushed"]), holders, row["life"])

    async def log_identity(self) -> tuple[str, bytes]:
        """The log's epoch and the secret that signs its hints."""
        row = await self._control.fetchrow("log_identity")
        return row["epoch"], row["hint_secret"]

    async def heads(self, channels: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Head]:
        rows = await self._control.fetch("heads", [n for n, _ in channels], [c for _, c in channels])
        return {(r["namespace"], r["name"]): Head(r["id"], r["last_id"], r["last_seq"]) for r in rows}

    async def page(self, selection: Selection, after: int, upto: int | None, limit: int) -> Page:
        types, keys = list(selection.types) or None, list(selection.keys) or None
        if selection.single is not None:
            rows = await self._pages.fetch(
                "page_channel", selection.namespace, selection.single, after, limit, types, keys, PAGE_BYTES
            )
            return _channel_page(rows, after, limit)
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
            PAGE_BYTES,
            STRETCH,
        )
        end = next(r["id"] for r in rows if r["kind"] == _END)
        return _page(rows, after, end, limit)

    async def span(self, after: int, upto: int, limit: int) -> Span:
        *rows, end = await self._control.fetch("span", after, upto, limit, PAGE_BYTES)
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
        )
        return {r["channel_id"]: r["start"] for r in rows}

    async def page_from(
        self, selection: Selection, starts: dict[int, int], after: int, upto: int, limit: int
    ) -> Page:
        rows = await self._pages.fetch(
            "page_from",
            list(starts),
            list(starts.values()),
            after,
            upto,
            limit,
            list(selection.types) or None,
            list(selection.keys) or None,
            PAGE_BYTES,
        )
        return _page(rows, after, upto, limit)

    async def since(self, selection: Selection, time: datetime) -> int | None:
        first = await self._pages.fetchval(
            "first_since", selection.namespace, list(selection.names), _regex(selection), time
        )
        return None if first is None else int(first) - 1

    async def seq_at(self, channel_id: int, message_id: int) -> int:
        return int(await self._pages.fetchval("seq_at", channel_id, message_id))


def _regex(selection: Selection) -> str | None:
    return "|".join(to_regex(p) for p in selection.patterns) or None


def _messages(rows: list[Any]) -> tuple[Message, ...]:
    return tuple(message(r, r["channel"]) for r in rows if r["kind"] == _MESSAGE)


def _trims(rows: list[Any]) -> tuple[Trim, ...]:
    return tuple(Trim(r["channel"], r["channel_id"], r["seq"], r["id"]) for r in rows if r["kind"] == _TRIM)


def _is_cut(rows: list[Any], messages: int, limit: int) -> bool:
    """Whether a bound may have ended these rows: the last one reached it."""
    return messages == limit or sum(r["size"] for r in rows) >= PAGE_BYTES


def _page(rows: list[Any], after: int, upto: int, limit: int) -> Page:
    messages = _messages(rows)
    complete_to = messages[-1].id if _is_cut(rows, len(messages), limit) else upto
    return Page(after, complete_to, 0, messages, _trims(rows))


def _channel_page(rows: list[Any], after: int, limit: int) -> Page:
    messages = _messages(rows)
    head = next((r for r in rows if r["kind"] == _HEAD), None)
    if _is_cut(rows, len(messages), limit):
        assert head is not None, "messages come with their channel"
        return Page(after, messages[-1].id, messages[-1].seq, messages, _trims(rows), head["channel_id"])
    if head is None:
        return Page(after, after, 0, ())
    return Page(after, max(after, head["id"]), head["seq"], messages, _trims(rows), head["channel_id"])
