"""Follows the whole log in id order, for feeds of several channels.

Ids are a dense axis too: every id up to the last one taken is a message, or void, or still being committed.
While hot copies arrive for every id in turn, the database is not asked. A hole closes when a late copy comes.
Otherwise the follower waits until the watermark says that nothing can appear in it, and reads that span of
ids.
"""

from __future__ import annotations

from subscriptions.domain.merge import Merge
from subscriptions.domain.pattern import Pattern, compile_pattern
from subscriptions.domain.selection import Selection
from subscriptions.domain.watermark import Watermark
from subscriptions.engine.entry import Encode, Entry, entry_of
from subscriptions.engine.live.feed import LogFeed
from subscriptions.ports import Clock, ReadPort

SPAN_LIMIT = 2000
JUMP_SPANS = 25
"""After this many full spans in a row the follower gives up: the feeds jump ahead and their readers read
history instead."""
ROUTES_KEPT = 50_000


class LogFollower:
    """Runs the merge over the log's ids, and routes messages from channels to feeds."""

    def __init__(self, read: ReadPort, encode: Encode, watermark: Watermark, clock: Clock) -> None:
        self._read = read
        self._encode = encode
        self._watermark = watermark
        self._clock = clock
        self._merge: Merge[Entry] | None = None
        self._feeds: dict[LogFeed, list[Pattern]] = {}
        self._routes: dict[tuple[str, str], tuple[LogFeed, ...]] = {}
        self._reading_to = 0

    def __repr__(self) -> str:
        return f"LogFollower({self._merge!r}, {len(self._feeds)} feeds)"

    @property
    def active(self) -> bool:
        return bool(self._feeds)

    @property
    def floor(self) -> int:
        """Everything at or below this id was handed to the feeds."""
        return self._merge.floor if self._merge is not None else self._watermark.settled

    @property
    def behind(self) -> bool:
        """Whether a message is known to exist that was not handed out yet."""
        return self._merge is not None and self.active and self._merge.behind

    def open(self, selection: Selection, tail_bytes: int) -> LogFeed:
        """Open a feed that starts here. The watermark must have observed a tick before."""
        if self._merge is None or not self._feeds:
            self._merge = Merge(max(self._watermark.settled, self._reading_to))
        # A span that is being read now was requested before this feed was opened.
        base = max(self._merge.floor, self._reading_to)
        feed = LogFeed(selection, self._read, self._encode, self._clock, tail_bytes, base, lambda: self.floor)
        self._feeds[feed] = [compile_pattern(p) for p in selection.patterns]
        self._routes.clear()
        return feed

    def forget(self) -> None:
        """Start again without feeds, routes and position."""
        self._merge = None
        self._reading_to = 0
        self._feeds.clear()
        self._routes.clear()

    def close(self, feed: LogFeed) -> None:
        """Forget a feed."""
        self._feeds.pop(feed, None)
        self._routes.clear()

    def routes(self, namespace: str, channel: str) -> tuple[LogFeed, ...]:
        """The feeds that follow this channel."""
        key = (namespace, channel)
        feeds = self._routes.get(key)
        if feeds is None:
            if len(self._routes) >= ROUTES_KEPT:
                self._routes.clear()
            feeds = self._routes[key] = tuple(
                feed for feed, patterns in self._feeds.items() if _follows(feed, patterns, namespace, channel)
            )
        return feeds

    def offer(self, entries: list[Entry]) -> None:
        """Take hot copies, in any order."""
        if self._merge is not None and self._feeds:
            for entry in entries:
                self._merge.offer(entry.id, entry)

    def note(self, last_id: int) -> None:
        """Note an id that exists, without a copy."""
        if self._merge is not None:
            self._merge.note(last_id)

    def advance(self) -> None:
        """Hand out the entries that have become contiguous."""
        if self._merge is not None:
            ready = self._merge.take()
            if ready:
                self._hand_out(ready)

    def missing(self) -> bool:
        """Whether the watermark has passed an id that no hint brought."""
        return (
            self._merge is not None
            and self.active
            and self._merge.missing(self._watermark.settled) is not None
        )

    async def catch_up(self) -> None:
        """Read settled ids that no hint brought. Raises GaplessError when the database cannot be read."""
        for _ in range(JUMP_SPANS):
            merge, upto = self._merge, self._watermark.settled
            after = merge.missing(upto) if merge is not None and self.active else None
            if merge is None or after is None:
                return
            self._reading_to = upto
            try:
                span = await self._read.span(after, upto, SPAN_LIMIT)
            finally:
                self._reading_to = 0
            if merge is not self._merge:
                return
            if span.trimmed:
                break
            entries = [
                (m.id, entry_of(namespace, m, self._encode))
                for namespace, m in span.messages
                if self.routes(namespace, m.channel)
            ]
            self._hand_out(merge.fill(entries, span.complete_to))
        else:
            if not self.missing():
                return
        self._jump()

    def _jump(self) -> None:
        assert self._merge is not None, "only a follower jumps"
        upto = self._watermark.settled
        self._merge.fill((), upto)
        for feed in self._feeds:
            feed.jump(self._merge.floor)

    def _hand_out(self, entries: list[Entry]) -> None:
        by_feed: dict[LogFeed, list[Entry]] = {}
        for entry in entries:
            for feed in self.routes(entry.namespace, entry.channel):
                by_feed.setdefault(feed, []).append(entry)
        floor = self.floor
        for feed in self._feeds:
            feed.grow(by_feed.get(feed, []), floor)


def _follows(feed: LogFeed, patterns: list[Pattern], namespace: str, channel: str) -> bool:
    if feed.selection.namespace != namespace:
        return False
    return channel in feed.selection.names or any(p.matches(channel) for p in patterns)
