"""Feeds: one for each selection in a process. A feed is itself a live cursor. Its output is a tail that any
number of subscriptions read, each at its own position, so merging is done once for all readers.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

from subscriptions.domain.errors import GaplessError
from subscriptions.domain.merge import MAX_AHEAD, Merge
from subscriptions.domain.selection import Selection
from subscriptions.engine.entry import Encode, Entry, Wire, entry_of
from subscriptions.engine.hints import ChannelHint, EphemeralHint, MarkerHint
from subscriptions.engine.live.tail import Tail
from subscriptions.ports import Clock, Head, Page, ReadPort, Trim

PAGE_LIMIT = 1000
CHUNK_BYTES = 256 * 1024
PAGES_KEPT = 8
MIN_PAGE_BYTES = 32 * 1024
MAX_PAGE_BYTES = 4 * 1024 * 1024
MEMO_KEPT = 1024
MEMO_BYTES = 4 * CHUNK_BYTES
EPHEMERAL_BYTES = 1024 * 1024
"""Ephemeral messages, and markers that were moved, kept for readers that have not looked yet; the newest one
always fits."""
REORDER_GRACE_S = 0.005
"""How long a hole between hints may stay open for late hints before the database is read."""
RETRY_S = 0.5
WAKE_EVERY_S = 0.001
WAKE_REST = 1.0
MAX_PACE_S = 0.1
"""Seconds between two wakings of a feed's readers: at least `WAKE_EVERY_S`, at most `MAX_PACE_S`. In between,
the process rests `WAKE_REST` times as long as a waking takes."""


class Waker(Protocol):
    """A subscription as its feed sees it."""

    def wake(self, now: float | None = None) -> None: ...


class HistoryPage:
    """A page of history as entries: all messages of the selection in (`after`, `complete_to`]."""

    __slots__ = ("after", "complete_to", "entries", "size_bytes", "trims")

    def __init__(self, after: int, complete_to: int, entries: list[Entry], trims: tuple[Trim, ...]) -> None:
        self.after = after
        self.complete_to = complete_to
        self.entries = entries
        self.trims = trims
        self.size_bytes = sum(entry.size_bytes for entry in entries)

    def following(self, cursor: int, max_bytes: int) -> tuple[list[Entry], int]:
        """Entries after `cursor`, about `max_bytes` but at least one entry; and the new cursor."""
        first = bisect_right(self.entries, cursor, key=_id)
        size = 0
        for index in range(first, len(self.entries)):
            size += len(self.entries[index].body)
            if size >= max_bytes and index + 1 < len(self.entries):
                return self.entries[first : index + 1], self.entries[index].id
        return self.entries[first:], self.complete_to


def _id(entry: Entry) -> int:
    return entry.id


class Feed:
    """The base of all feeds: the tail, the cache of joined writes (memo), pages of history, waking the
    readers.

    Bounds: the tail by `tail_bytes`, pages by number and bytes, the memo by number and bytes. For a reader
    behind all of them the feed reads the database, one read at a time.
    """

    def __init__(
        self,
        selection: Selection,
        read: ReadPort,
        encode: Encode,
        clock: Clock,
        tail_bytes: int,
        base: int = 0,
    ) -> None:
        self.selection = selection
        self.channel_id = 0
        """That of the one channel whose messages it holds, once it exists."""
        self.tail = Tail(base, tail_bytes)
        self.subscribers: dict[Waker, None] = {}
        self.unready = 0
        self.joining = 0
        self.idle_since: float | None = None
        self.ephemeral: deque[tuple[int, bytes, bool]] = deque()
        """What is not stored, with its number, and whether it is a marker."""
        self.ephemeral_count = 0
        self._ephemeral_bytes = 0
        self._read = read
        self._encode = encode
        self._clock = clock
        self._memo: dict[tuple[int, str], tuple[bytes, int]] = {}
        self._memo_bytes = 0
        self._pages: OrderedDict[int, HistoryPage] = OrderedDict()
        self._paged_at = 0.0
        self._wanted: set[int] = set()
        self._fetch: asyncio.Task[None] | None = None
        self._wake_at: asyncio.TimerHandle | None = None
        self._woke_at = 0.0
        self._cost_s = 0.0
        self._pace_s = WAKE_EVERY_S

    def __repr__(self) -> str:
        name = self.selection.single or f"{self.selection.names + self.selection.patterns}"
        return f"{type(self).__name__}({name}: {self.tail!r}, {len(self.subscribers)} readers)"

    # --- reading

    def chunk(self, cursor: int, wire: Wire) -> tuple[bytes, int] | None:
        """The messages after `cursor` as one write, and the cursor after it; None when it is below the tail.

        Readers at the same position get the same bytes object.
        """
        if cursor < self.tail.base:
            return None
        key = (cursor, wire.name)
        hit = self._memo.get(key)
        if hit is None:
            entries, after = self.tail.after(cursor, CHUNK_BYTES)
            hit = (b"".join([entry.frame(wire) for entry in entries]), after)
            if len(self.subscribers) > 1:
                self._remember(key, hit)
        return hit

    def _remember(self, key: tuple[int, str], hit: tuple[bytes, int]) -> None:
        self._memo_bytes += len(hit[0])
        if self._memo_bytes > MEMO_BYTES or len(self._memo) >= MEMO_KEPT:
            self._forget()
            self._memo_bytes = len(hit[0])
        self._memo[key] = hit

    def _forget(self) -> None:
        self._memo.clear()
        self._memo_bytes = 0

    async def page(self, cursor: int) -> HistoryPage | None:
        """The page of history with the messages after `cursor`; None once the tail covers it.

        Raises GaplessError `unavailable` when the database cannot be read.
        """
        while cursor < self.tail.base:
            for after, page in self._pages.items():
                if after <= cursor < page.complete_to:
                    self._pages.move_to_end(after)
                    self._paged_at = self._clock()
                    return page
            self._wanted.add(cursor)
            if self._fetch is None:
                self._fetch = asyncio.create_task(self._fetch_page())
                self._fetch.add_done_callback(_look_at)
            # Shielded: a reader that goes away must not take the page from the others.
            await asyncio.shield(self._fetch)
        return None

    async def _fetch_page(self) -> None:
        await asyncio.sleep(0)  # All readers that wake in this round of the loop add their cursor first.
        after = min(self._wanted)
        self._wanted.clear()
        base, channel_id = self.tail.base, self.channel_id
        try:
            page = await self._read.page(
                self.selection, after, self._readable_to(), PAGE_LIMIT, self._page_bytes()
            )
        finally:
            self._fetch = None
        if not self._is_current(page, channel_id):
            return
        if page.channel_id == 0 and channel_id == self.channel_id:
            base = self.tail.base
        entries = self.entries(page)
        # A deleted channel has no history up to where its tail begins. If the channel has been created again
        # since this was asked, the tail may have moved past its first messages.
        complete_to = page.complete_to if page.complete_to > after else base
        self._pages[after] = HistoryPage(after, complete_to, entries, page.trims)
        self._paged_at = self._clock()
        self._bound_pages()

    def _page_bytes(self) -> int:
        """Payload of a page: half of the tail's limit, because its messages are held in two forms. So the
        memory of all feeds is bounded for any number of them."""
        return max(MIN_PAGE_BYTES, min(MAX_PAGE_BYTES, self.tail.max_bytes // 2))

    def _bound_pages(self) -> None:
        """Drop the oldest pages. The newest stays: otherwise a message above the limit could not be read."""
        while len(self._pages) > 1 and (
            len(self._pages) > PAGES_KEPT
            or sum(page.size_bytes for page in self._pages.values()) > self.tail.max_bytes
        ):
            self._pages.popitem(last=False)

    def forget_pages(self, before: float) -> None:
        """Drop the pages if no reader used one since `before` (of the clock)."""
        if self._paged_at < before:
            self._pages.clear()

    def entries(self, page: Page) -> list[Entry]:
        """A page's messages, encoded."""
        return [entry_of(self.selection.namespace, m, self._encode) for m in page.messages]

    def _readable_to(self) -> int | None:
        """The id up to which history may be read; None: no limit."""
        raise NotImplementedError

    def _is_current(self, page: Page, channel_id: int) -> bool:
        """Whether this page may be given to readers. If not, it is read again. `channel_id`: that of the feed
        when the page was asked for."""
        return True

    # --- growing

    def _grow(self, entries: list[Entry], head: int) -> None:
        admits = self.selection.admits
        if self.selection.is_filtered:
            entries = [e for e in entries if admits(e.type, e.key, is_change=e.is_change)]
        self.tail.append(entries, head)
        self._forget()
        # A reader that is not ready yet needs progress without messages too, to send `Ready`.
        if entries or self.unready:
            self.wake()

    def add_ephemeral(self, hint: EphemeralHint | MarkerHint) -> None:
        """Give a message that is not stored, or a marker that was moved, to the readers if they asked for
        it; a slow reader misses the oldest ones."""
        if isinstance(hint, MarkerHint):
            is_asked = self.selection.markers
        else:
            is_asked = self.selection.admits(hint.type, hint.key, is_change=False)
        if is_asked:
            self.ephemeral_count += 1
            self.ephemeral.append((self.ephemeral_count, hint.body, isinstance(hint, MarkerHint)))
            self._ephemeral_bytes += len(hint.body)
            while self._ephemeral_bytes > EPHEMERAL_BYTES and len(self.ephemeral) > 1:
                self._ephemeral_bytes -= len(self.ephemeral.popleft()[1])
            self.wake()

    def wake(self) -> None:
        """Make every subscription look: at once after a quiet moment, otherwise after the pace, once for all
        messages that came.

        The pace follows the cost of a waking, so that the process keeps time for other work: under more load,
        more messages share a write.
        """
        if self._wake_at is not None or not self.subscribers:
            return
        wait_s = self._woke_at + self._pace_s - self._clock()
        if wait_s <= 0:
            self._wake_all()
        else:
            self._wake_at = asyncio.get_running_loop().call_later(wait_s, self._wake_all)

    def _wake_all(self) -> None:
        self._wake_at = None
        self._woke_at = self._clock()
        for subscriber in self.subscribers:
            subscriber.wake(self._woke_at)
        # Runs after all tasks that were woken here.
        asyncio.get_running_loop().call_soon(self._woken, self._woke_at)

    def _woken(self, since: float) -> None:
        cost_s = self._clock() - since
        # One slow waking may have another cause, so the cost rises slowly and falls at once.
        self._cost_s = min(cost_s, self._cost_s * 1.25 + 0.0001)
        self._pace_s = min(MAX_PACE_S, max(WAKE_EVERY_S, self._cost_s * (1 + WAKE_REST)))

    async def close(self) -> None:
        """End the feed and its running reads."""
        self.abandon()
        if self._fetch is not None:
            self._fetch.cancel()

    def abandon(self) -> None:
        """Add nothing more. A page that readers wait for still comes."""
        if self._wake_at is not None:
            self._wake_at.cancel()


class ChannelFeed(Feed):
    """A feed of one channel. Its seq is dense, so a hot copy right after the floor needs no other proof."""

    def __init__(
        self, selection: Selection, read: ReadPort, encode: Encode, clock: Clock, tail_bytes: int
    ) -> None:
        super().__init__(selection, read, encode, clock, tail_bytes)
        self.merge: Merge[Entry] = Merge(0)
        self.channel = selection.names[0]
        self.began_at = Head(0, 0, 0)
        """Where the channel stood when this feed began."""
        self._last_id = 0
        self._early: list[tuple[ChannelHint, list[Entry]]] | None = []
        self._catching_up: asyncio.Task[None] | None = None

    def begin(self, head: Head) -> None:
        """Start from the head, which was read after the first hints could come in."""
        assert self._early is not None, "a feed begins once"
        early, self._early = self._early, None
        self.tail = Tail(head.last_id, self.tail.max_bytes)
        self.merge = Merge(head.last_seq)
        self.channel_id = head.channel_id
        self.began_at = head
        for hint, entries in early:
            self.hint(hint, entries)

    def _readable_to(self) -> int | None:
        return None

    def _is_current(self, page: Page, channel_id: int) -> bool:
        if page.channel_id == 0 and channel_id == self.channel_id:
            # What is left of it in the tail is given to nobody either: retention may have removed messages
            # before that, and nothing tells of them any more.
            self._end()
        if page.channel_id > self.channel_id:
            self._begin_anew(page.channel_id)
            self.merge.note(page.complete_seq)
            self._advance(patient=False)
        # A page of a channel that was deleted meanwhile shows no reader that another one has its name now.
        return page.channel_id in (0, self.channel_id)

    def hint(self, hint: ChannelHint, entries: list[Entry]) -> None:
        """Take the hint of a commit in this channel."""
        if self._early is not None:
            if len(self._early) < MAX_AHEAD:  # The first sweep finds messages of hints that do not fit.
                self._early.append((hint, entries))
            return
        if hint.channel_id != self.channel_id:
            if hint.channel_id < self.channel_id:
                return
            self._begin_anew(hint.channel_id)
        for entry in entries:
            self.merge.offer(entry.seq, entry)
        if hint.copies:
            self.merge.note(hint.copies[-1].seq)
        self._advance()

    def swept(self, head: Head) -> int:
        """Take the head that the database reports, which repairs lost hints. Returns how many messages no
        hint had named."""
        if self._early is not None:
            return 0
        if head.channel_id > self.channel_id:
            self._begin_anew(head.channel_id)
        if head.channel_id == 0:
            self._end()
        elif head.channel_id == self.channel_id:
            unhinted = max(0, head.last_seq - self.merge.known)
            self._last_id = max(self._last_id, head.last_id)
            self.merge.note(head.last_seq)
            self._advance(patient=False)
            return unhinted
        return 0

    def _begin_anew(self, channel_id: int) -> None:
        """The channel was deleted and created again: its seq begins at 1; ids go on rising."""
        self._end()
        self.channel_id = channel_id
        self.merge = Merge(0)

    def _end(self) -> None:
        """The channel was deleted: unread messages are gone, and its readers have all that there is. None of
        its messages is given to readers that come later."""
        end = max(self._last_id, self.tail.head)
        if end > self.tail.base:
            self.tail.reset(end)
            self._forget()
            self.wake()
        self._pages.clear()

    def _advance(self, *, patient: bool = True) -> None:
        ready = self.merge.take()
        if ready:
            self._grow(ready, ready[-1].id)
        if self.merge.missing() is not None and self._catching_up is None:
            self._catching_up = asyncio.create_task(self._catch_up(REORDER_GRACE_S if patient else 0))

    async def _catch_up(self, grace_s: float) -> None:
        """Read messages that hints named but did not bring, until none is missing."""
        try:
            await asyncio.sleep(grace_s)
            while self.merge.missing() is not None:
                try:
                    await self._read_on()
                except GaplessError:
                    await asyncio.sleep(RETRY_S)
        finally:
            self._catching_up = None

    async def _read_on(self) -> None:
        known, floor, after, channel_id = self.merge.known, self.merge.floor, self.tail.head, self.channel_id
        page = await self._read.page(self.selection, after, None, PAGE_LIMIT)
        if channel_id != self.channel_id:
            return
        if page.channel_id > channel_id:
            # Deleted and created again: these messages belong to another channel, whose seq begins at 1.
            self._begin_anew(page.channel_id)
            self.merge.note(page.complete_seq)
            return
        if page.trims:
            # Retention removed messages above this feed: readers learn of the gap from the page they read.
            self.tail.reset(page.trims[0].trimmed_id)
        entries = self.entries(page)
        ready = self.merge.fill([(e.seq, e) for e in entries], page.complete_seq)
        head = max(page.complete_to, ready[-1].id if ready else 0)
        self._grow([e for e in ready if e.id > self.tail.head], head)
        if self.merge.known == known and page.complete_seq <= floor:
            # A hint named a message that does not exist, for example before a restore. The database decides.
            self.merge.known = self.merge.floor
        if page.trims:
            self.wake()

    def abandon(self) -> None:
        super().abandon()
        if self._catching_up is not None:
            self._catching_up.cancel()


class LogFeed(Feed):
    """A feed of several channels or a pattern, filled by the follower of the whole log in id order."""

    def __init__(
        self,
        selection: Selection,
        read: ReadPort,
        encode: Encode,
        clock: Clock,
        tail_bytes: int,
        base: int,
        settled: Callable[[], int],
    ) -> None:
        super().__init__(selection, read, encode, clock, tail_bytes, base)
        self._settled = settled

    def _readable_to(self) -> int | None:
        return max(self._settled(), self.tail.base)

    def grow(self, entries: list[Entry], head: int) -> None:
        """Add what the log holds for this selection up to and including `head`."""
        if head > self.tail.head:
            self._grow([e for e in entries if e.id > self.tail.head], head)

    def jump(self, base: int) -> None:
        """Start again after `base`: there was too much to catch up with, or retention removed some of it. The
        readers read history instead."""
        self.tail.reset(base)
        self._forget()
        self.wake()


def _look_at(task: asyncio.Task[None]) -> None:
    """Mark the error as seen: the readers that wait get it, or all of them left."""
    if not task.cancelled():
        task.exception()
