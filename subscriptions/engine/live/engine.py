"""The live engine, one for each process. It takes hints and adds their messages to feeds; ticks and sweeps
find messages for which no hint came."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from subscriptions.domain.channel_epoch import ChannelEpoch
from subscriptions.domain.errors import Code, GaplessError, unavailable
from subscriptions.domain.goodbye import Goodbye
from subscriptions.domain.model import Message
from subscriptions.domain.selection import Selection
from subscriptions.domain.sweeping import SWEEP_S, SweepSchedule
from subscriptions.domain.watermark import Fence, Tick, Watermark
from subscriptions.engine.entry import Encode, Entry, Wire
from subscriptions.engine.hints import ChannelHint, EphemeralHint, MarkerHint
from subscriptions.engine.live.beginning import Begin, after_seq, carry, opened_at
from subscriptions.engine.live.feed import ChannelFeed, Feed, LogFeed
from subscriptions.engine.live.follower import LogFollower
from subscriptions.engine.live.heads import NOWHERE, Channel, HeadLookup
from subscriptions.engine.live.live_subscription import HistoryChanged, LiveSubscription
from subscriptions.engine.live.starts import (
    After,
    AfterSeq,
    Carried,
    Earliest,
    Last,
    Latest,
    Opened,
    Since,
    Start,
)
from subscriptions.engine.single_flight import SingleFlight
from subscriptions.ports import Clock, Head, Lost, ReadPort

log = logging.getLogger(__name__)

TICK_IDLE_S = 0.05
TICK_HOLE_S = 0.01
RETRY_S = 0.5
READ_WITHIN_S = 5.0
"""The log counts as readable this long after the last round that read it."""
LINGER_S = 10.0
"""A feed without readers is kept this long: a client that lost its connection finds it still warm."""
START_TIMEOUT_S = 8.0
MIN_TAIL_BYTES = 8 * 1024
MAX_TAIL_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LiveLimits:
    """The most streams that a process serves, and the bytes that its hot tails hold together, roughly."""

    max_streams: int = 10_000
    tail_bytes: int = 128 * 1024 * 1024


class LiveEngine:
    """Feeds and subscriptions of one process."""

    def __init__(
        self,
        read: ReadPort,
        encode: Encode,
        *,
        clock: Clock,
        limits: LiveLimits | None = None,
        on_history: Callable[[int], None] = lambda seen: None,
    ) -> None:
        """`on_history` is called when the log's history has changed, with the largest id that was seen of
        it."""
        self.read = read
        self.watermark = Watermark()
        self._encode_plainly = encode
        self.follower = LogFollower(read, self._encode, self.watermark, clock)
        self.subscriptions: dict[LiveSubscription, None] = {}
        self.stopping = False
        self.epoch = ""
        """The epoch of the history that is read, once it is known."""
        self.life = ""
        self.fence: Fence | None = None
        """The newest fence of the history that is read, once it is known."""
        self.moved = asyncio.Event()
        """Set whenever `epoch` or `life` has changed."""
        self._on_history = on_history
        self.tick = SingleFlight(self._tick)
        self.sweep = SingleFlight(self._sweep)
        self._head = HeadLookup(self._heads)
        self._limits = limits or LiveLimits()
        self._clock = clock
        self._channels: dict[Channel, dict[Selection, ChannelFeed]] = {}
        self._feeds: dict[Selection, Feed] = {}
        self._opening: dict[Selection, asyncio.Task[Feed]] = {}
        self._attention = asyncio.Event()
        self._shared_by = 0
        self._sweeps = SweepSchedule()
        self._read_at = clock()
        self._obstacle = "it does not answer"
        self.unhinted = 0
        """Messages that sweeps found and that no hint had named; counted once for each feed."""

    def __repr__(self) -> str:
        return f"LiveEngine({len(self.subscriptions)} streams, {len(self._feeds)} feeds, {self.watermark!r})"

    @property
    def identity(self) -> str:
        """Names the history and the running server that are read."""
        return f"{self.epoch}:{self.life}"

    @property
    def feeds(self) -> list[Feed]:
        """The feeds that are open now."""
        return list(self._feeds.values())

    # --- hints

    def hear(self, hints: Iterable[tuple[ChannelHint, list[Entry]]]) -> None:
        """Take hints of commits, in this process or another: hot copies may be missing."""
        follower = self.follower
        for hint, entries in hints:
            if not hint.copies:
                continue
            last_id = hint.copies[-1].id
            self._sweeps.hear(last_id)
            self.watermark.saw(last_id)
            for feed in (self._channels.get((hint.namespace, hint.channel)) or {}).values():
                feed.hint(hint, entries)
            if follower.active:
                follower.offer(entries)
                follower.note(last_id)
        if follower.active:
            follower.advance()
            if follower.behind:
                self._attention.set()

    def follows(self, namespace: str, channel: str) -> bool:
        """Whether a hot copy of a message in this channel is useful here. With a reader of several channels
        every message is: the follower needs each id to see that none is missing."""
        return self.follower.active or (namespace, channel) in self._channels

    def hear_ephemeral(self, hint: EphemeralHint | MarkerHint) -> None:
        """Give a message that is not stored, or a marker that was moved, to the readers that listen now."""
        channel = (hint.namespace, hint.channel)
        for feed in (*self._channels.get(channel, {}).values(), *self.follower.routes(*channel)):
            feed.add_ephemeral(hint)

    def sweep_soon(self) -> None:
        """Sweep at once, not at the next regular time: hints may have been lost."""
        self._sweeps.soon()
        self._attention.set()

    # --- subscribing

    async def subscribe(
        self, selection: Selection, start: Start, wire: Wire, heartbeat_s: float
    ) -> LiveSubscription:
        """A live subscription from `start`. The caller gives it back with `unsubscribe`.

        Raises GaplessError: `rate_limited` with too many streams, `invalid_request` (400) for a cursor that
        lies in the future, `unavailable` when the database cannot be asked.
        """
        if self.stopping:
            raise unavailable("the server is stopping; another one will take you")
        self._refuse_if_full()
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                lost = await self._look_back(selection, start)
                epoch = self.epoch
                if lost is not None:
                    start = After(lost.stands)
                carried = await carry(self.read, selection, start, self.watermark.settled)
                feed, head = await self._open(selection)
                begin = await self._begin(feed, head, start, carried)
        except TimeoutError as error:
            raise unavailable("the database does not answer") from error
        self._refuse_if_full()  # Others may have begun meanwhile.
        if self._feeds.get(selection) is not feed or epoch not in ("", self.epoch):
            raise unavailable("the log's history has changed")
        subscription = LiveSubscription(
            feed, begin.cursor, wire, heartbeat_s, begin.latest, begin.starts, begin.carried
        )
        subscription.opened = begin.opened
        if begin.opened is None:
            # Ids mean the same in every history of the log, so a cursor always holds, but for what was lost.
            cursor = start.cursor if isinstance(start, After) else begin.cursor
            subscription.opened = Opened(ChannelEpoch(self.epoch), cursor, holds=lost is None)
        if lost is not None:
            subscription.say_first(HistoryChanged(selection.single, lost.first_id, lost.last_id))
        elif begin.gap is not None:
            subscription.say_first(begin.gap)
        subscription.spoke_at = self._clock()
        feed.subscribers[subscription] = None
        feed.idle_since = None
        self.subscriptions[subscription] = None
        return subscription

    def _refuse_if_full(self) -> None:
        if len(self.subscriptions) >= self._limits.max_streams:
            raise GaplessError(Code.RATE_LIMITED, "this process serves no more streams", retry_after=2)

    def unsubscribe(self, subscription: LiveSubscription) -> None:
        """Forget it. Its feed stays warm for a while."""
        subscription.leave()
        feed = subscription.feed
        feed.subscribers.pop(subscription, None)
        self.subscriptions.pop(subscription, None)
        if not feed.subscribers:
            feed.idle_since = self._clock()

    def committed(self, fence: Fence | None, last_id: int) -> bool:
        """A message was committed behind this fence. Returns whether readers here follow the history behind
        it; if not, a tick is due."""
        if self.fence in (None, fence):
            self.watermark.saw(last_id)
            return True
        if fence is not None:
            self.read.doubt(fence)
        self._attention.set()
        return False

    def stop(self) -> None:
        """Take no new subscriptions, and send every one a goodbye."""
        self.stopping = True
        for subscription in self.subscriptions:
            subscription.dismiss(Goodbye.SHUTDOWN)

    async def _begin(self, feed: Feed, head: Head | None, start: Start, carried: Carried | None) -> Begin:
        feed.joining += 1
        try:
            if isinstance(feed, ChannelFeed):
                head = head or await self._head((feed.selection.namespace, feed.channel))
                latest = head.last_id
            else:
                latest = await self._last_id_settled()
            match start:
                case After(cursor):
                    if carried is None:
                        return Begin(cursor, latest)
                    if isinstance(feed, ChannelFeed):
                        # What the feed handed out counts, even if the channel was deleted since.
                        return Begin(min(cursor, max(latest, carried.settled, feed.tail.head)), latest)
                    return Begin(carried.settled, latest, carried=carried)
                case AfterSeq():
                    assert isinstance(feed, ChannelFeed), "a seq is of one channel"
                    return await after_seq(self.read, feed, head or NOWHERE, start, self.epoch)
                case Latest():
                    opened = None if head is None else opened_at(self.epoch, head)
                    return Begin(latest, latest, opened=opened)
                case Earliest():
                    return Begin(0, latest)
                case Last(count):
                    starts = await self.read.last(feed.selection, count, latest)
                    return Begin(min(starts.values(), default=latest), latest, starts or None)
                case Since(time):
                    first = await self.read.since(feed.selection, time)
                    return Begin(latest if first is None else min(first, latest), latest)
        finally:
            feed.joining -= 1

    async def _look_back(self, selection: Selection, start: Start) -> Lost | None:
        """What a reader at this cursor may have seen that is not here. Raises `invalid_request` (400) for a
        cursor that no history of this log can have reached."""
        if not isinstance(start, After):
            return None
        if start.cursor > self.watermark.settled or not self.epoch:
            await self.tick()
        epoch = self.epoch
        lost = await self.read.lost(selection, start.cursor)
        if epoch != self.epoch:
            raise unavailable("the log's history has changed")
        if lost is None and start.cursor > max(self.watermark.last_id, self._sweeps.hinted):
            detail = f"cursor {start.cursor} lies in the future of this log"
            raise GaplessError(Code.INVALID_REQUEST, detail, status=400)
        return lost

    async def read_watermark(self) -> tuple[int, int]:
        """Where the log stands, asked now: the settled id, and the last id taken."""
        tick = await self.tick()
        return self.watermark.settled, tick.last_id

    async def _last_id_settled(self) -> int:
        """The last id taken as of this call, once it is settled."""
        last_id = (await self.tick()).last_id
        while self.watermark.settled < last_id:
            await asyncio.sleep(TICK_HOLE_S / 2)
            # A crash of the database takes back ids that were not committed.
            last_id = min(last_id, (await self.tick()).last_id)
        self._attention.set()
        return last_id

    # --- feeds

    async def _open(self, selection: Selection) -> tuple[Feed, Head | None]:
        """The feed. If this call opened it for a channel, also where that channel stands, read since."""
        feed = self._feeds.get(selection)
        if feed is not None:
            return feed, None
        opening = self._opening.get(selection)
        if opening is not None:
            return await asyncio.shield(opening), None
        opening = self._opening[selection] = asyncio.create_task(self._open_new(selection))
        opening.add_done_callback(lambda task: self._opened(selection, task))
        feed = await asyncio.shield(opening)
        return feed, feed.began_at if isinstance(feed, ChannelFeed) else None

    def _opened(self, selection: Selection, opening: asyncio.Task[Feed]) -> None:
        self._opening.pop(selection, None)
        if not opening.cancelled():
            opening.exception()  # Marks it as seen: the callers that wait get it, if any is left.

    async def _open_new(self, selection: Selection) -> Feed:
        epoch = self.epoch
        if not epoch:
            epoch = (await self.tick()).fence.epoch
        if selection.single is None:
            await self._last_id_settled()
            feed: Feed = self.follower.open(selection, self._tail_bytes())
        else:
            feed = await self._open_channel(selection, (selection.namespace, selection.single))
        if epoch != self.epoch:
            raise unavailable("the log's history has changed")
        # It counts as idle until its first subscriber is there; that one may have left meanwhile.
        feed.idle_since = self._clock()
        self._feeds[selection] = feed
        self._attention.set()
        return feed

    async def _open_channel(self, selection: Selection, channel: Channel) -> ChannelFeed:
        feed = ChannelFeed(selection, self.read, self._encode, self._clock, self._tail_bytes())
        # The feed takes hints from before the head is read, so that none is lost in between.
        feeds = self._channels.setdefault(channel, {})
        feeds[selection] = feed
        try:
            feed.begin(await self._head(channel))
        except BaseException:
            self._drop_channel(selection)
            raise
        return feed

    def _encode(self, message: Message) -> bytes:
        """Note that this message was committed: if the database lacks it later, it was taken back."""
        self.watermark.saw(message.id)
        return self._encode_plainly(message)

    def _tail_bytes(self) -> int:
        """The bytes that one hot tail may hold: an even share of the limit of all."""
        share = self._limits.tail_bytes // (len(self._feeds) + 1)
        return max(MIN_TAIL_BYTES, min(MAX_TAIL_BYTES, share))

    def _share_evenly(self) -> None:
        """Share the memory again if the number of feeds changed."""
        if len(self._feeds) != self._shared_by:
            self._shared_by = len(self._feeds)
            share = self._tail_bytes()
            for feed in self._feeds.values():
                feed.tail.bound(share)

    def _drop_channel(self, selection: Selection) -> None:
        channel = (selection.namespace, selection.names[0])
        feeds = self._channels.get(channel, {})
        feeds.pop(selection, None)
        if not feeds:
            self._channels.pop(channel, None)

    async def _drop_idle(self) -> None:
        before = self._clock() - LINGER_S
        for selection, feed in list(self._feeds.items()):
            feed.forget_pages(before)
            if feed.subscribers or feed.joining or feed.idle_since is None or feed.idle_since > before:
                continue
            del self._feeds[selection]
            if isinstance(feed, LogFeed):
                self.follower.close(feed)
            else:
                self._drop_channel(selection)
            await feed.close()

    # --- the loops

    def check(self) -> None:
        """Raises `unavailable` if the log could not be read for `READ_WITHIN_S`: publishes may be stored, but
        readers wait."""
        if self._clock() - self._read_at > READ_WITHIN_S:
            raise unavailable(f"the log cannot be read: {self._obstacle}")

    async def run(self) -> None:
        """Tick, catch up and sweep until cancelled; once a second while there are no readers."""
        while True:
            self._attention.clear()
            try:
                await self._round()
                self._read_at = self._clock()
            except GaplessError as error:
                self._obstacle = error.detail
                log.warning("the live engine cannot read the database: %s", error.detail)
                await asyncio.sleep(RETRY_S)
            await self._drop_idle()
            self._share_evenly()
            await self._pause()

    async def _round(self) -> None:
        # The watermark moves on even without readers: retention waits for it too.
        await self.tick()
        if not self._feeds:
            return
        if self.follower.missing():
            await self.follower.catch_up()
        if self._sweeps.due(self.watermark.settled, self._clock()):
            await self.sweep()

    async def _pause(self) -> None:
        if self.follower.behind:
            await asyncio.sleep(TICK_HOLE_S)
            return
        try:
            async with asyncio.timeout(TICK_IDLE_S if self._feeds else SWEEP_S):
                await self._attention.wait()
        except TimeoutError:
            return
        # What called for attention may be settled in a moment without reading.
        await asyncio.sleep(TICK_HOLE_S if self.follower.behind else 0)

    async def _tick(self) -> Tick:
        tick = await self._judged_tick()
        self.read.follow(tick)
        self.fence = tick.fence
        if tick.fence.epoch != self.epoch:
            # At once: all that is read from here on belongs to the new history.
            self._follow_history(tick.fence.epoch)
        if tick.life != self.life:
            self.life = tick.life
            self.moved.set()
        before = self.watermark.regressions
        self.watermark.observe(tick)
        if self.watermark.regressions > before:
            log.error("the last id taken went back to %d without a crash of the server", tick.last_id)
        return tick

    async def _judged_tick(self) -> Tick:
        """A tick of a history that holds all that was seen of it. A database that was taken back to an
        earlier moment begins another history first."""
        tick = await self.read.tick()
        if self.watermark.was_taken_back(tick):
            log.error("the database lost messages: it was restored to an earlier state")
            await self.read.disown(tick.fence.epoch, tick.shared or 0)
            tick = await self.read.tick()
            if self.watermark.was_taken_back(tick):
                raise unavailable("the database was replaced again")
        return tick

    def _follow_history(self, epoch: str) -> None:
        """Another history begins, in which seqs may mean something else. Every stream ends; its client comes
        back with its cursor and is told which messages it may have seen."""
        began, self.epoch = not self.epoch, epoch
        self.moved.set()
        if began:
            return
        log.warning("the log's history has changed; all streams end, and clients resume them")
        for subscription in self.subscriptions:
            subscription.dismiss(Goodbye.HISTORY_CHANGED)
        for feed in self._feeds.values():
            feed.abandon()
        self._feeds.clear()
        self._channels.clear()
        self.follower.forget()
        self._sweeps = SweepSchedule()
        self._on_history(self.watermark.seen)

    async def _sweep(self) -> None:
        """Compare what the database has in every followed channel with what was delivered."""
        settled = self.watermark.settled
        if self._channels:
            await self._heads(list(self._channels))
        self._sweeps.swept(settled, self._clock())

    async def _heads(self, channels: Collection[Channel]) -> dict[Channel, Head]:
        """Read where channels stand, and let their feeds find messages for which no hint came."""
        epoch = self.epoch
        heads = await self.read.heads(list(channels))
        for channel in channels if epoch == self.epoch else ():
            self.watermark.saw(heads.get(channel, NOWHERE).last_id)
            for feed in (self._channels.get(channel) or {}).values():
                self.unhinted += feed.swept(heads.get(channel, NOWHERE))
        return heads

    async def beat(self) -> None:
        """Send a heartbeat on each subscription that was silent for its interval, until cancelled."""
        while True:
            await asyncio.sleep(1.0)
            now = self._clock()
            for subscription in self.subscriptions:
                # Half a second early, not late: clients count the seconds too.
                if now - subscription.spoke_at >= subscription.heartbeat_s - 0.5:
                    subscription.spoke_at = now
                    subscription.beat()
