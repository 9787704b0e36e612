"""Implements `ReadPort`: pages, heads and ticks for live readers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import takewhile
from typing import Any

import asyncpg

from db.connect import Pool
from db.queries import load
from db.rows import filter_of, message
from subscriptions.domain.errors import unavailable
from subscriptions.domain.model import Message
from subscriptions.domain.pattern import to_regex
from subscriptions.domain.selection import Selection
from subscriptions.domain.signing import PURPOSES, SigningSecrets
from subscriptions.domain.watermark import Fence, Tick
from subscriptions.ports import NO_PLACE, Head, Lost, Page, Place, Span, Trim

PAGE_BYTES = 4 * 1024 * 1024
"""A page ends with the message that reaches this many bytes of payload, even below its limit of messages."""

FRESH_CHANNELS = 4000
"""When channels are read from their own starts, one page begins at most this many of them."""

STRETCH = 5000
"""How many messages of the whole log one page of many channels looks through."""

LINEAGE_KEPT = 1000
"""How many of a history's newest fences are remembered, to find which of them another history has too."""
FENCED_IDS = 2**50
"""From here on ids come from behind a fence: they follow the clock, and so many microseconds had passed in
2005."""

CURSORS_AHEAD = 2**24
"""How far a reader's cursor may lie above the last id of the history that it comes from: others read on there
after the last tick of this process."""
HISTORIES_LEFT = 100

_MESSAGE, _HEAD, _TRIM = range(3)
_END = _HEAD


@dataclass(frozen=True, slots=True)
class _Left:
    """A history that this process followed before, and that the present one does not know: its own ids are
    those from `base` to `last_id`, and of the past that both have it may lack ids from `parted` on."""

    base: int
    last_id: int
    parted: int


class Reader:
    """Reads for live subscriptions. The pool `control` serves heads and spans, so that many slow history
    pages in the pool `pages` never delay a live reader.

    Ticks have a connection of their own, the pool `ticks`. A server never changes under a connection, and a
    new one is opened only when the last one broke. So where it leads is where the log is now, whatever its
    fences are. The fence that each other read finds shows whether it leads there too.
    """

    def __init__(self, pages: Pool, control: Pool, ticks: Pool) -> None:
        self._pages = pages
        self._control = control
        self._ticks = ticks
        self._fence_sql = load()["fence"]
        self._lineage_sql = load()["lineage"]
        self._read_for: tuple[str, str, int] | None = None
        self._lineage: dict[Fence, int] = {}
        """The fences of the last tick's history, newest first, and the first id that may be lost at each."""
        self._followed: dict[Fence, int] = {}
        """Those of the history that is followed."""
        self._last_id = 0
        self._left: deque[_Left] = deque(maxlen=HISTORIES_LEFT)
        self._doubted: Fence | None = None
        self._foreign: Fence | None = None

    async def tick(self) -> Tick:
        doubted, self._doubted = self._doubted, None
        known = _newest(self._followed).number if self._followed else None
        (row,) = await self._ticks.fetch("tick", known, check=partial(self._learn, doubted))
        followed = self._followed
        return Tick(
            row["last_id"],
            int(row["lsn"]),
            int(row["flushed"]),
            frozenset(row["holders"]),
            row["life"],
            _newest(self._lineage),
            row["newest"],
            max((f.number for f in self._lineage if f in followed), default=-1) if followed else None,
        )

    async def _learn(self, doubted: Fence | None, rows: list[Any], connection: asyncpg.Connection) -> None:
        """Read the history that led to this tick, unless it is known. Raise `unavailable` if `doubted`,
        behind which others published, is not in it: this may be an old connection to a replaced primary."""
        (row,) = rows
        read_for = row["life"], row["epoch"], row["fences"]
        if read_for != self._read_for:
            found = await connection.fetch(self._lineage_sql, row["fences"], LINEAGE_KEPT)
            self._lineage = {Fence(*each): lost_from for *each, lost_from in found}
            self._read_for = read_for
        if doubted is not None and doubted not in self._lineage and doubted != self._foreign:
            # Once for each: an old connection of a publisher may lead to a replaced primary as well.
            self._foreign = doubted
            raise unavailable("publishers and readers may be connected to different databases")

    def follow(self, tick: Tick) -> None:
        # As a rule the first is known. An older one may be missing only because the newest are kept.
        unknown = list(takewhile(lambda fence: fence not in self._lineage, self._followed))
        if 0 < len(unknown) < len(self._followed):
            first = unknown[-1]
            self._left.append(_Left(first.base, self._last_id + CURSORS_AHEAD, self._followed[first]))
        self._followed, self._last_id = self._lineage, tick.last_id

    def doubt(self, fence: Fence) -> None:
        self._doubted = fence

    async def _is_current(self, rows: list[Any], connection: asyncpg.Connection) -> None:
        """Raise `unavailable` unless the newest fence is that of the history that is followed."""
        if not self._followed:
            return
        newest = await connection.fetchrow(self._fence_sql)
        if newest is None or Fence(*newest) != _newest(self._followed):
            raise unavailable("the log's history may have changed")

    async def disown(self, epoch: str, known: int) -> None:
        await self._ticks.fetch("disown", epoch, known)

    async def signing_secrets(self) -> SigningSecrets:
        """What signs hints and receipts now, and what else is accepted."""
        rows = await self._control.fetch("signing_secrets")
        return SigningSecrets(
            *(tuple(bytes(r["secret"]) for r in rows if r["purpose"] == purpose) for purpose in PURPOSES)
        )

    async def lost(self, selection: Selection, cursor: int) -> Lost | None:
        if self._followed and _newest(self._followed).number == 0 and cursor < FENCED_IDS:
            return None
        parted = min(
            (left.parted for left in self._left if left.base <= cursor <= left.last_id), default=None
        )
        row = await self._pages.fetchrow("lost", selection.namespace, selection.single, cursor, parted)
        if row is None or row["first_id"] > cursor:
            return None
        return Lost(row["first_id"], cursor, row["stands"])

    async def heads(self, channels: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Head]:
        names = [n for n, _ in channels], [c for _, c in channels]
        rows = await self._control.fetch("heads", *names, check=self._is_current)
        return {
            (r["namespace"], r["name"]): Head(r["id"], r["last_id"], r["last_seq"], r["unborn_at"])
            for r in rows
        }

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
        if selection.single is not None:
            rows = await self._pages.fetch(
                "page_channel",
                selection.namespace,
                selection.single,
                after,
                limit,
                *filter_of(selection),
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
            *filter_of(selection),
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
            *filter_of(selection),
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
            *filter_of(selection),
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

    async def place_at(self, namespace: str, channel: str, seq: int) -> Place:
        rows = await self._pages.fetch("place_at", namespace, channel, seq, check=self._is_current)
        return Place(**rows[0]) if rows else NO_PLACE


def _newest(fences: dict[Fence, int]) -> Fence:
    return next(iter(fences))


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
