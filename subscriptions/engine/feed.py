"""Feeds: one per selection and process. A feed is itself a live cursor; its output is a run that any number
of subscriptions read at their own positions, so the work of merging is done once however many read.
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
from subscriptions.engine.hints import ChannelHint
from subscriptions.engine.run import Run
from subscriptions.ports import Clock, Head, Page, ReadPort, Trim

PAGE_LIMIT = 1000
CHUNK_BYTES = 256 * 1024
PAGES_KEPT = 8
MIN_PAGE_BYTES = 32 * 1024
MAX_PAGE_BYTES = 4 * 1024 * 1024
MEMO_KEPT = 1024
MEMO_BYTES = 4 * CHUNK_BYTES
EPHEMERAL_BYTES = 1024 * 1024
"""Ephemeral messages kept for readers that have not looked yet; the newest one always fits."""
REORDER_GRACE_S = 0.005
"""How long a hole between hints may close by itself before the database is read."""
RETRY_S = 0.5
WAKE_EVERY_S = 0.001
WAKE_REST = 1.0
MAX_PACE_S = 0.1
"""Seconds between two wakings of a feed's readers: at least the first, at most the last; in between, the
process rests so many times as long as a waking takes it."""


class Waker(Protocol):
    """A subscription as its feed sees it."""

    def wake(self, now: float | None = None) -> None: ...


class HistoryPage:
    """A page of history as entries: everything of the selection in (`after`, `complete_to`]."""

    __slots__ = ("after", "complete_to", "entries", "size_bytes", "trims")

    def __init__(self, after: int, complete_to: int, entries: list[Entry], trims: tuple[Trim, ...]) -> None:
        self.after = after
        self.complete_to = complete_to
        self.entries = entries
        self.trims = trims
        self.size_bytes = sum(entry.size_bytes for entry in entries)

    def following(self, cursor: int, max_bytes: int) -> tuple[list[Entry], int]:
        """Entries after `cursor`, about `max_bytes` of them but one at least; and the new cursor."""
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
    """What all feeds share: the run, the memo of joined writes, pages of history, waking the readers.

    Bounds: the run by `run_bytes`, pages by number, the memo by number; whoever is behind all of them
    reads the database, one read at a time a feed.
    """

    def __init__(
        self,
        selection: Selection,
        read: ReadPort,
        encode: Encode,
        clock: Clock,
        run_bytes: int,
        base: int = 0,
    ) -> None:
        self.selection = selection
        self.run = Run(base, run_bytes)
        self.subscribers: dict[Waker, None] = {}
        self.unready = 0
        self.joining = 0
        self.idle_since: float | None = None
        self.ephemeral: deque[tuple[int, bytes]] = deque()
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
        return f"{type(self).__name__}({name}: {self.run!r}, {len(self.subscribers)} readers)"

    # --- reading

    def chunk(self, cursor: int, wire: Wire) -> tuple[bytes, int] | None:
        """What follows `cursor` as one write and the cursor after it; None when it lies below the run.

        Readers at the same position get the same bytes object.
        """
        if cursor < self.run.base:
            return None
        key = (cursor, wire.name)
        hit = self._memo.get(key)
        if hit is None:
            entries, after = self.run.after(cursor, CHUNK_BYTES)
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
        """The page of history that holds what follows `cursor`; None once the run covers it.

        Raises GaplessError `unavailable` when the database cannot be read.
        """
        while cursor < self.run.base:
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
        await asyncio.sleep(0)  # Everybody who wakes in this round of the loop gets its wish in.
        after = min(self._wanted)
        self._wanted.clear()
        base = self.run.base
        try:
            page = await self._read.page(
                self.selection, after, self._readable_to(), PAGE_LIMIT, self._page_bytes()
            )
        finally:
            self._fetch = None
        entries = self.entries(page)
        # A channel that was deleted has no history left up to where the run began when this was asked. It may
        # have been made again since, and the run have moved past its first messages.
        complete_to = page.complete_to if page.complete_to > after else base
        self._pages[after] = HistoryPage(after, complete_to, entries, page.trims)
        self._paged_at = self._clock()
        self._bound_pages()

    def _page_bytes(self) -> int:
        """Payload of a page: half of what the run may hold, for its messages are held in two forms. So what
        feeds hold is bounded however many there are."""
        return max(MIN_PAGE_BYTES, min(MAX_PAGE_BYTES, self.run.max_bytes // 2))

    def _bound_pages(self) -> None:
        """The oldest pages go; the newest stays, or a message larger than the bound could never be read."""
        while len(self._pages) > 1 and (
            len(self._pages) > PAGES_KEPT
            or sum(page.size_bytes for page in self._pages.values()) > self.run.max_bytes
        ):
            self._pages.popitem(last=False)

    def forget_pages(self, before: float) -> None:
        """Let pages go that nobody looked into since `before` (of the clock)."""
        if self._paged_at < before:
            self._pages.clear()

    def entries(self, page: Page) -> list[Entry]:
        """A page's messages, encoded."""
        return [entry_of(self.selection.namespace, m, self._encode) for m in page.messages]

    def _readable_to(self) -> int | None:
        """Up to which id history may be read."""
        raise NotImplementedError

    # --- growing

    def _grow(self, entries: list[Entry], head: int) -> None:
        admits = self.selection.admits
        if self.selection.types or self.selection.keys:
            entries = [e for e in entries if admits(e.type, e.key)]
        self.run.append(entries, head)
        self._forget()
        # Whoever waits to hear that history is sent wants to know of progress without messages too.
        if entries or self.unready:
            self.wake()

    def add_ephemeral(self, type_: str, key: str | None, body: bytes) -> None:
        """Hand a message that is not stored to whoever listens; a slow reader misses the oldest."""
        if self.selection.admits(type_, key):
            self.ephemeral_count += 1
            self.ephemeral.append((self.ephemeral_count, body))
            self._ephemeral_bytes += len(body)
            while self._ephemeral_bytes > EPHEMERAL_BYTES and len(self.ephemeral) > 1:
                self._ephemeral_bytes -= len(self.ephemeral.popleft()[1])
            self.wake()

    def wake(self) -> None:
        """Have every subscription look: at once after a quiet moment, else once a pace for all that came.

        The pace follows what a waking costs, so that writing to readers leaves time for what they are
        written: the busier, the more messages share a write.
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
        # Comes after every task that was woken here has had its turn.
        asyncio.get_running_loop().call_soon(self._woken, self._woke_at)

    def _woken(self, since: float) -> None:
        cost_s = self._clock() - since
        # One waking that was interrupted by something else says little: up slowly, down at once.
        self._cost_s = min(cost_s, self._cost_s * 1.25 + 0.0001)
        self._pace_s = min(MAX_PACE_S, max(WAKE_EVERY_S, self._cost_s * (1 + WAKE_REST)))

    async def close(self) -> None:
        """End running reads."""
        self.abandon()
        if self._fetch is not None:
            self._fetch.cancel()

    def abandon(self) -> None:
        """Nothing is added to it any more. A page that readers wait for still comes."""
        if self._wake_at is not None:
            self._wake_at.cancel()


class ChannelFeed(Feed):
    """A feed of one channel. Its seq is dense, so a hot copy that follows the floor is proof enough."""

    def __init__(
        self, selection: Selection, read: ReadPort, encode: Encode, clock: Clock, run_bytes: int
    ) -> None:
        super().__init__(selection, read, encode, clock, run_bytes)
        self.merge: Merge[Entry] = Merge(0)
        self.channel_id = 0
        self._last_id = 0
        self._early: list[tuple[ChannelHint, list[Entry]]] | None = []
        self._catching_up: asyncio.Task[None] | None = None

    def begin(self, head: Head) -> None:
        """Start from the head that was read after hints were first heard."""
        assert self._early is not None, "a feed begins once"
        early, self._early = self._early, None
        self.run = Run(head.last_id, self.run.max_bytes)
        self.merge = Merge(head.last_seq)
        self.channel_id = head.channel_id
        for hint, entries in early:
            self.hint(hint, entries)

    def _readable_to(self) -> int | None:
        return None

    def hint(self, hint: ChannelHint, entries: list[Entry]) -> None:
        """Something was committed in this channel."""
        if self._early is not None:
            if len(self._early) < MAX_AHEAD:  # What does not fit is found by the first sweep.
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
        """What the database says is there: heals lost hints. How many messages no hint had told of."""
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
        """The channel was deleted and made again: its seq begins at 1; ids go on rising."""
        self._end()
        self.channel_id = channel_id
        self.merge = Merge(0)

    def _end(self) -> None:
        """The channel was deleted: what was not read of it is gone, and its readers have all there is."""
        if self._last_id > self.run.head:
            self._grow([], self._last_id)

    def _advance(self, *, patient: bool = True) -> None:
        ready = self.merge.take()
        if ready:
            self._grow(ready, ready[-1].id)
        if self.merge.missing() is not None and self._catching_up is None:
            self._catching_up = asyncio.create_task(self._catch_up(REORDER_GRACE_S if patient else 0))

    async def _catch_up(self, grace_s: float) -> None:
        """Read what hints promised and did not bring, until nothing is missing."""
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
        known, floor, after, channel_id = self.merge.known, self.merge.floor, self.run.head, self.channel_id
        page = await self._read.page(self.selection, after, None, PAGE_LIMIT)
        if channel_id != self.channel_id:
            return
        if page.channel_id > channel_id:
            # Deleted and made again: these messages are another channel's, counted from 1.
            self._begin_anew(page.channel_id)
            self.merge.note(page.complete_seq)
            return
        if page.trims:
            # Retention overtook this feed: its readers learn of the gap from the page they read instead.
            self.run.reset(page.trims[0].trimmed_id)
        entries = self.entries(page)
        ready = self.merge.fill([(e.seq, e) for e in entries], page.complete_seq)
        head = max(page.complete_to, ready[-1].id if ready else 0)
        self._grow([e for e in ready if e.id > self.run.head], head)
        if self.merge.known == known and page.complete_seq <= floor:
            # Promised, and not there: a hint from before a restore, say. The database decides.
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
        run_bytes: int,
        base: int,
        settled: Callable[[], int],
    ) -> None:
        super().__init__(selection, read, encode, clock, run_bytes, base)
        self._settled = settled

    def _readable_to(self) -> int | None:
        return max(self._settled(), self.run.base)

    def grow(self, entries: list[Entry], head: int) -> None:
        """What the log holds for this selection up to and with `head`."""
        if head > self.run.head:
            self._grow([e for e in entries if e.id > self.run.head], head)

    def jump(self, base: int) -> None:
        """Too much to catch up with, or retention overtook it: the readers go through history instead."""
        self.run.reset(base)
        self._forget()
        self.wake()


def _look_at(task: asyncio.Task[None]) -> None:
    """Whoever waits gets the error; when all of them left, nobody needs to."""
    if not task.cancelled():
        task.exception()
