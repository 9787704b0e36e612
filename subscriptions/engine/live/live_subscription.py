"""A live subscription: a cursor on a feed. It has no queue: when it is woken, it looks at the feed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from subscriptions.domain.errors import GaplessError
from subscriptions.domain.goodbye import Goodbye
from subscriptions.engine.entry import Entry, Wire
from subscriptions.engine.live.feed import CHUNK_BYTES, RETRY_S, Feed
from subscriptions.engine.live.starts import Carried, Opened
from subscriptions.ports import ReadPort, Trim

STARTS_LIMIT = 4000
STARTS_BYTES = 1024 * 1024
"""Limits of one page with the newest messages of many channels. A reader holds it alone until it is sent."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Messages as the wire writes them, joined."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Ready:
    """All history is sent; from `cursor` on the stream is live."""

    cursor: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Retention removed `missed` messages of `channel` that this reader had not seen; `first_seq` is the
    oldest one left. It comes before the messages that are left, and moves no cursor: a reader that loses its
    connection right after it gets it again."""

    channel: str
    first_seq: int
    missed: int


@dataclass(frozen=True, slots=True)
class HistoryChanged:
    """The log's history has changed: messages with ids from `first_id` to `last_id` that this reader may have
    seen are not in it, and no reader will get them. `channel`: the one that it reads, None for several. This
    event comes before all others."""

    channel: str | None
    first_id: int
    last_id: int


@dataclass(frozen=True, slots=True)
class Ephemeral:
    """A message that was never stored, or a marker that was moved: its JSON text."""

    body: bytes
    is_marker: bool = False


class Heartbeat(Enum):
    """The event that is sent when nothing came for the time of a heartbeat."""

    HEARTBEAT = "heartbeat"


Event = Chunk | Ready | Gap | HistoryChanged | Ephemeral | Heartbeat | Goodbye


Write = Callable[[bytes], bool]


class LiveSubscription:
    """One reader. `news` returns when there may be events, and `take` returns them: nothing is built for a
    reader that has no room. The cursor only rises, and only past events that were returned. `ready_at` is the
    id of the last history when it began: `Ready` comes right after it.

    Not for concurrent use. An event has about `CHUNK_BYTES` at most, or is one message.
    """

    __slots__ = (
        "_announced",
        "_beat_due",
        "_carried",
        "_ephemeral_seen",
        "_failed",
        "_gone_to",
        "_goodbye",
        "_pending",
        "_ready",
        "_ready_at",
        "_starts",
        "_waiter",
        "_wire",
        "cursor",
        "feed",
        "gone",
        "heartbeat_s",
        "opened",
        "rested",
        "spoke_at",
        "write",
    )

    def __init__(
        self,
        feed: Feed,
        cursor: int,
        wire: Wire,
        heartbeat_s: float,
        ready_at: int,
        starts: dict[int, int] | None = None,
        carried: Carried | None = None,
    ) -> None:
        self.feed = feed
        self.cursor = cursor
        self.heartbeat_s = heartbeat_s
        self.spoke_at = 0.0
        self.gone = False
        self.opened: Opened | None = None
        """Where it began, once it is open."""
        self.write: Write | None = None
        """A face's callback that writes at once: true when it took all bytes, false when it took none."""
        self.rested = True
        """Set whenever `news` let other tasks run; a face that calls it in a loop checks it."""
        self._wire = wire
        self._ready_at = ready_at
        self._starts = starts
        self._carried = carried
        self._announced: dict[str, Trim] | None = None
        self._gone_to = 0
        """Up to this id gaps count messages as missed. The tail may hold some of them, or get them later:
        retention does not wait for what is settled here."""
        self._pending: Iterator[Event] | None = None
        self._ephemeral_seen = feed.ephemeral_count
        self._ready = False
        self._failed = False
        feed.unready += 1
        self._beat_due = False
        self._goodbye: Goodbye | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"LiveSubscription(at {self.cursor} of {self.feed!r})"

    def say_first(self, event: Gap | HistoryChanged) -> None:
        """Set the event that comes before all others."""
        self._pending = iter((event,))

    # --- what others tell it

    def wake(self, now: float | None = None) -> None:
        """Make it look for new messages. With `now` (of the engine's clock) it may write at once."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if now is None or not self._write_now(now):
            waiter.set_result(None)

    def _write_now(self, now: float) -> bool:
        """Pass new messages directly to the face, without waking its task. False: the task has to look."""
        if self.write is None or self._pending is not None or not self._ready or self._beat_due:
            return False
        if self._goodbye is not None or self.gone or self._ephemeral_seen < self.feed.ephemeral_count:
            return False
        if self.cursor < self._gone_to:
            return False
        chunk = self.feed.chunk(self.cursor, self._wire)
        if chunk is None or (chunk[0] and not self.write(chunk[0])):
            return False
        self.spoke_at = now
        self.cursor = chunk[1]
        # If the chunk was cut at its limit, the task writes the rest.
        return self.cursor >= self.feed.tail.head

    def write_beside(self, data: bytes) -> bool:
        """Pass something that is no event directly to the face. Returns False, and passes nothing, before
        `Ready`, and while the reader has something else to take."""
        waiter = self._waiter
        if waiter is None or waiter.done() or self.write is None or not self._ready or self.gone:
            return False
        return self.write(data)

    def beat(self) -> None:
        """A heartbeat is due."""
        self._beat_due = True
        self.wake()

    def dismiss(self, reason: Goodbye) -> None:
        """Make the goodbye its next event; the client resumes elsewhere with its cursor."""
        self._goodbye = reason
        self.wake()

    def leave(self) -> None:
        """The client is gone: `news` and `take` raise `ConnectionResetError` from here on."""
        self.gone = True
        if not self._ready:
            self._ready = True
            self.feed.unready -= 1
        self.wake()

    # --- what its face asks

    async def next(self, read: ReadPort) -> Event:
        """The next event, for a reader that always has room."""
        while True:
            await self.news()
            event = await self._take_one(read)
            if event is not None:
                return event

    async def news(self) -> None:
        """Return once `take` may find events. After it failed to read the database, that is `RETRY_S` later,
        or when there is something else to say. Raises ConnectionResetError once the client is known to be
        gone."""
        while not self._has_news():
            await self._wait()
        if self.gone:
            raise ConnectionResetError

    async def take(self, read: ReadPort) -> list[Event]:
        """The next events: those of one chunk, or of one page of history, which it may have to read. There
        may be none. Raises as `news`."""
        event = await self._take_one(read)
        if event is None:
            return []
        rest, self._pending = self._pending, None
        return [event, *(rest or ())]

    async def _take_one(self, read: ReadPort) -> Event | None:
        event = self._next_event()
        if event is None and self._lies_in_history():
            await self._read_history(read)
            event = self._next_event()
        return event

    def _next_event(self) -> Event | None:
        if self.gone:
            raise ConnectionResetError
        if self._goodbye is not None:
            return self._goodbye
        if self._pending is not None:
            event = next(self._pending, None)
            if event is not None:
                return event
            self._pending = None
        return self._event_now()

    def _lies_in_history(self) -> bool:
        return self._starts is not None or self.cursor < self.feed.tail.base

    def _has_news(self) -> bool:
        if self.gone or self._goodbye is not None or self._pending is not None or self._beat_due:
            return True
        if self._failed:
            return False
        feed = self.feed
        return (
            self.cursor < feed.tail.head
            or self._starts is not None
            or self._ephemeral_seen < feed.ephemeral_count
            or (not self._ready and self.cursor >= self._ready_at)
        )

    def _retry(self) -> None:
        self._failed = False
        self.wake()

    def _event_now(self) -> Event | None:
        """The event that can be returned at once, if any."""
        if self._beat_due:
            self._beat_due = False
            return Heartbeat.HEARTBEAT
        if self._starts is not None:
            return None
        chunk = self._chunk()
        if chunk is None:
            return None
        data, self.cursor = chunk
        if data:
            return Chunk(data)
        if not self._ready and self.cursor >= self._ready_at:
            self._ready = True
            self.feed.unready -= 1
            return Ready(self.cursor)
        return self._next_ephemeral()

    def _chunk(self) -> tuple[bytes, int] | None:
        """The messages after the cursor in the feed's tail, and the new cursor."""
        if self._carried is not None and self.cursor >= self._carried.cursor:
            self._carried = None
        shares = self._carried is None and self.cursor >= self._gone_to
        if shares or self.cursor < self.feed.tail.base:
            return self.feed.chunk(self.cursor, self._wire)
        entries, after = self.feed.tail.after(self.cursor, CHUNK_BYTES)
        return b"".join([entry.frame(self._wire) for entry in self._unread(entries)]), after

    def _unread(self, entries: list[Entry]) -> list[Entry]:
        """The entries that do not lie before a carried cursor, and that no gap has counted as missed."""
        carried, announced = self._carried, self._announced
        if carried is not None:
            entries = [entry for entry in entries if not carried.is_before(entry.channel, entry.id)]
        if announced is not None and self.cursor < self._gone_to:
            gone = {channel: trim.trimmed_id for channel, trim in announced.items()}
            entries = [entry for entry in entries if entry.id > gone.get(entry.channel, 0)]
        return entries

    def _next_ephemeral(self) -> Event | None:
        feed = self.feed
        if self._ephemeral_seen >= feed.ephemeral_count:
            return None
        # They are numbered without a hole, so the index of the next one is computed.
        oldest = feed.ephemeral[0][0]
        self._ephemeral_seen, body, is_marker = feed.ephemeral[max(0, self._ephemeral_seen + 1 - oldest)]
        return Ephemeral(body, is_marker)

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
            self.rested = True

    # --- history

    async def _read_history(self, read: ReadPort) -> None:
        try:
            if self._starts is not None:
                await self._read_starts(read, self._starts)
                return
            page = await self.feed.page(self.cursor)
            if page is not None:
                gaps = await self._gaps(read, page.trims, {})
                # Take only enough for one write, so that a slow reader does not keep a page in
                # memory.
                self._pending = self._say(gaps, *page.following(self.cursor, CHUNK_BYTES))
        except GaplessError:
            self._failed = True
            asyncio.get_running_loop().call_later(RETRY_S, self._retry)

    async def _read_starts(self, read: ReadPort, starts: dict[int, int]) -> None:
        """Read the newest messages of each channel, up to the id at which the feed takes over."""
        selection = self.feed.selection
        page = await read.page_from(
            selection, starts, self.cursor, self._ready_at, STARTS_LIMIT, STARTS_BYTES
        )
        gaps = await self._gaps(read, page.trims, starts)
        self._pending = self._say(gaps, self.feed.entries(page), page.complete_to)
        if page.complete_to >= self._ready_at:
            self._starts = None

    def _say(self, gaps: list[Gap], entries: list[Entry], complete_to: int) -> Iterator[Event]:
        """Yield gaps, then messages in bounded writes. The cursor moves as they are yielded."""
        yield from gaps
        batch: list[bytes] = []
        size = 0
        for entry in self._unread(entries):
            frame = entry.frame(self._wire)
            batch.append(frame)
            size += len(frame)
            if size >= CHUNK_BYTES:
                self.cursor = entry.id
                yield Chunk(b"".join(batch))
                batch, size = [], 0
        self.cursor = max(self.cursor, complete_to)
        if batch:
            yield Chunk(b"".join(batch))

    async def _gaps(self, read: ReadPort, trims: tuple[Trim, ...], starts: dict[int, int]) -> list[Gap]:
        """The gaps between this cursor (or the channel's own start) and the messages that retention left, one
        for each channel."""
        gaps: list[Gap] = []
        told: dict[str, Trim] = {}
        announced = self._announced or {}
        cursor = max(self.cursor, self._carried.cursor if self._carried else 0)
        for trim in trims:
            last = announced.get(trim.channel)
            known = last.first_seq if last is not None and last.channel_id == trim.channel_id else 1
            if trim.trimmed_id <= cursor or trim.first_seq <= known:
                continue
            seen_id = max(cursor, starts.get(trim.channel_id, 0))
            seen = max(await read.seq_at(trim.channel_id, seen_id), known - 1)
            told[trim.channel] = trim
            missed = trim.first_seq - 1 - seen
            if missed > 0:
                gaps.append(Gap(trim.channel, trim.first_seq, missed))
        if told:
            # Only here: if a read above fails, the gaps before it were not told.
            self._announced = announced | told
            self._gone_to = max(self._gone_to, *(trim.trimmed_id for trim in told.values()))
        return gaps
