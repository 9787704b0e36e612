"""The members of one durable subscription in this process, and the one claim that serves them all.

A group claims for all its members at once and deals the deliveries to them in turn. It claims again when it
hears of a publish, a settlement or a new request, when time makes a message due, and every second in any
case: so a lost hint delays a delivery by a second at most.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from subscriptions.domain.claiming import ClaimSchedule, pull_ends
from subscriptions.domain.delivery import Claimed, Delivery, Receipt, Subscription, Touched
from subscriptions.domain.errors import Code, GaplessError, unavailable
from subscriptions.domain.goodbye import Goodbye
from subscriptions.domain.model import MAX_ID
from subscriptions.domain.pattern import compile_pattern, is_pattern
from subscriptions.domain.sweeping import SWEEP_S
from subscriptions.engine.durable.dispatch import deal, hands_of_streams
from subscriptions.engine.durable.losses import Losses, PulledLosses
from subscriptions.engine.durable.member import Member
from subscriptions.engine.durable.pull import Pull
from subscriptions.ports import Clock, DeliveryPort, ReadWatermark

log = logging.getLogger(__name__)

RETRY_S = 0.5
STOP_S = 5.0
"""How long a stopping process waits for a claim under way."""
MAX_CLAIM = 1000
"""Messages of one claim."""
FEW_HANDS = 32
"""Streams may have room for far more messages than there are, and each hand costs time. So a claim for
streams has so many at least, and four times as many as the one before found messages. If all are used,
another claim follows at once."""
MAX_ROUTES = 10_000


@dataclass(frozen=True, slots=True)
class GroupDependencies:
    """What a group needs from its process. `look()` asks where the log stands; `now_us` is the time of day in
    microseconds; `holder` names the process."""

    port: DeliveryPort
    holder: int
    clock: Clock
    now_us: Callable[[], int]
    read_watermark: ReadWatermark
    refresh: Callable[[int], Awaitable[Subscription | None]]
    touched: Callable[[tuple[Touched, ...]], None]
    give_back: Callable[[list[Receipt]], None]


class Group:
    """Members and pulls of one subscription. Its task runs while there are any."""

    def __init__(self, subscription: Subscription, deps: GroupDependencies) -> None:
        self.subscription = subscription
        self.members: dict[Member, None] = {}
        self.holders: dict[int, Member] = {}
        """Message id → the member that it was dealt to last."""
        self.gone = False
        self.losses = Losses(deps.port, subscription.id)
        self.pulled_losses = PulledLosses(deps.port, subscription.id, self.losses)
        self._deps = deps
        self._pulls: dict[Pull, None] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._turn = 0
        self._found = 0
        """How many messages the last claim for streams found."""
        self._schedule = ClaimSchedule()
        self._stopped = False
        self._follow(subscription)

    def __repr__(self) -> str:
        return (
            f"Group({self.subscription.name}: {len(self.members)} members, {len(self._pulls)} pulls,"
            f" {'running' if self._task else 'idle'})"
        )

    @property
    def idle(self) -> bool:
        return not self.members and not self._pulls

    def _follow(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self._patterns = [compile_pattern(text) for text in subscription.channels]
        # One channel is read in order of its seq, which has no holes that could be filled later.
        self._single = len(subscription.channels) == 1 and not is_pattern(subscription.channels[0])
        self._routes: dict[str, bool] = {}
        self._schedule.come()

    # --- what it is told

    def follows(self, channel: str) -> bool:
        """Whether messages of this channel may be for it."""
        known = self._routes.get(channel)
        if known is None:
            if len(self._routes) >= MAX_ROUTES:
                self._routes.clear()
            known = self._routes[channel] = any(p.matches(channel) for p in self._patterns)
        return known

    def hear(self, channel: str, last_id: int) -> None:
        """A message was committed."""
        if self._task is not None and self.follows(channel):
            self._schedule.hear(last_id)
            self._wake.set()

    def wake(self) -> None:
        """Look at once: something about this subscription has changed."""
        self._wake.set()

    def wake_fresh(self) -> None:
        """The definition or the frontier has changed: read the definition, and check all leases, before the
        next claim."""
        self._schedule.sweep_whole()
        self._wake.set()

    def reported(self) -> None:
        """A member was told of all losses in its list."""
        self.losses.reported()

    def settled(self, message_id: int, lease: int) -> Member | None:
        """A lease has ended: if a member here held it, that member has room again. Returns that member."""
        member = self.holders.get(message_id)
        return member if member is not None and member.settled(message_id, lease) else None

    def released(self, receipts: Sequence[Receipt]) -> None:
        """These leases were given back by clients that did not work on them, in one request."""
        of = Counter(self.settled(receipt.message_id, receipt.lease) for receipt in receipts)
        for member, count in of.items():
            if member is not None:
                member.gave_back(count)

    def extended(self, message_id: int, lease: int, deadline_us: int) -> None:
        """A lease was extended to this deadline."""
        if (member := self.holders.get(message_id)) is not None:
            member.extended(message_id, lease, deadline_us)

    # --- who asks

    def add(self, asker: Pull | Member) -> None:
        if isinstance(asker, Pull):
            self._pulls[asker] = None
        else:
            self.members[asker] = None
        self._schedule.come()
        self._wake.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def remove(self, asker: Pull | Member) -> None:
        if isinstance(asker, Pull):
            self._pulls.pop(asker, None)
        else:
            self.members.pop(asker, None)
        self._wake.set()

    def dismiss(self, reason: Goodbye, seen: int = 0) -> None:
        """Tell all members and pulls to leave. `seen`: the largest id that they may have been given."""
        for member in self.members:
            member.seen = seen
            member.leave(reason)
        for pull in self._pulls:
            pull.resolve([])
        self._wake.set()

    async def stop(self) -> None:
        """Claim nothing more. A claim under way may end, and its deliveries are given back."""
        self._stopped = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=STOP_S)

    # --- the loop

    async def _run(self) -> None:
        try:
            while not self.idle and not self._stopped:
                woken = self._wake.is_set()
                self._wake.clear()
                pause_s = await self._try_round(woken)
                if pause_s > 0:
                    await self._pause(pause_s)
        finally:
            self._task = None

    async def _try_round(self, woken: bool) -> float:
        try:
            return await self._round(woken)
        except GaplessError as error:
            self._fail(error)
        except Exception:
            log.exception("subscription %s failed with an unexpected error", self.subscription.name)
            self._fail(unavailable("claiming failed; what was leased comes back when its lease ends"))
        self._schedule.claim_at_once()
        return RETRY_S

    async def _round(self, woken: bool) -> float:
        """Make one claim if there is room and something may have changed. Returns the seconds until the next
        look."""
        deps, schedule = self._deps, self._schedule
        if schedule.sweep_due(deps.clock()):
            await self._sweep()
        if self.gone or not (any(p.room for p in self._pulls) or any(m.room for m in self.members)):
            return SWEEP_S
        waiting = list(self._pulls)
        comers = schedule.comers
        settled, last_id = (MAX_ID, 0) if self._single else await deps.read_watermark()
        schedule.seen(comers, last_id)
        for pull in waiting:
            pull.last_id = last_id if pull.last_id is None else pull.last_id
        if not schedule.claim_due(settled, deps.clock(), woken=woken):
            self._expire(settled, whole=True)
            return self._until_next(settled)
        return await self._claim(settled)

    async def _claim(self, settled: int) -> float:
        """Claim for streams or for pulls, by turns, so that neither starves the other: the leases of streams
        end with this process, those of pulls do not. A message in doubt may fit only one of the two: then
        this claims for the other too."""
        deps = self._deps
        self._turn += 1
        # A message in doubt is offered to each stream.
        most = max(FEW_HANDS, 4 * self._found, len(self.members))
        streams = hands_of_streams(self.members, self._turn, min(most, MAX_CLAIM))
        pulls = min(sum(pull.room for pull in self._pulls), MAX_CLAIM)
        asks = [(deps.holder, len(streams), streams), (0, pulls, [])]
        asks = asks if self._turn % 2 == 0 else asks[::-1]
        for holder, limit, hands in [ask for ask in asks if ask[1]] or [(0, 0, [])]:
            claimed = await deps.port.claim(self.subscription.id, settled, limit, holder, hands)
            deps.touched(claimed.touched)
            if claimed.gone:
                self._vanish()
                return SWEEP_S
            self._tell(claimed)
            told = self._tell_pull(claimed) if holder == 0 else None
            if holder != 0:
                self._found = len(claimed.deliveries)
            self._deal(list(claimed.deliveries))
            if told is not None and not claimed.more:
                # The pull has losses to report, even if there are no deliveries.
                told.resolve([])
            if claimed.more or not claimed.doubt:
                break
        self._schedule.claimed(settled, deps.clock(), self._due_in_s(claimed), more=claimed.more)
        self._expire(settled, whole=not claimed.more)
        if claimed.more:
            await asyncio.sleep(0)
            return 0.0
        return self._until_next(settled)

    def _tell(self, claimed: Claimed) -> None:
        """Tell streams of losses, before the messages that are left."""
        members = [member for member in self.members if not member.goodbye]
        if claimed.losses and members:
            news = self.losses.news(claimed.losses)
            for member in members:
                member.tell(news)

    def _tell_pull(self, claimed: Claimed) -> Pull | None:
        """Tell the first pull of losses; returns it, or None if there is nothing to tell."""
        first = next((pull for pull in self._pulls if pull.room), None)
        if claimed.losses and first is not None:
            first.losses += self.pulled_losses.give(claimed.losses)
        return first if first is not None and first.losses else None

    def _due_in_s(self, claimed: Claimed) -> float | None:
        """Seconds until a claim may find something without a hint, by time alone."""
        if claimed.retry_at_us is None:
            return None
        return (claimed.retry_at_us - self._deps.now_us()) / 1e6

    def _until_next(self, settled: int) -> float:
        """Seconds until the next look."""
        return self._schedule.pause_s(settled, self._deps.clock(), (pull.until for pull in self._pulls))

    async def _pause(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _deal(self, deliveries: list[Delivery]) -> None:
        """Give deliveries to the pulls and streams they were leased to; give back those of the ones gone."""
        if unwanted := deal(deliveries, self._pulls, self.members):
            self._deps.give_back([self.receipt(delivery) for delivery in unwanted])

    def receipt(self, delivery: Delivery, holder: int = 0) -> Receipt:
        return Receipt(self.subscription.id, delivery.message.id, delivery.lease, holder)

    def _expire(self, settled: int, *, whole: bool) -> None:
        """Answer pulls that have waited long enough with nothing."""
        now = self._deps.clock()
        for pull in self._pulls:
            if pull_ends(pull.until, pull.last_id, settled, now, whole=whole):
                pull.resolve([])

    async def _sweep(self) -> None:
        """Check what hints may have missed: the definition, and leases that ended."""
        whole = self._schedule.sweep(self._deps.clock())
        found = await self._deps.refresh(self.subscription.id)
        if found is None:
            self._vanish()
            return
        if found.channels != self.subscription.channels:
            self._follow(found)
        self.subscription = found
        await self._look_after_leases(whole=whole)

    async def _look_after_leases(self, *, whole: bool) -> None:
        """Check the leases of streams without room, and leases past their deadline; or all (`whole`)."""
        now_us = self._deps.now_us()
        held = [
            (member, Receipt(self.subscription.id, message_id, lease))
            for member in self.members
            for message_id, (lease, deadline_us) in member.outstanding.items()
            if whole or member.room == 0 or deadline_us <= now_us
        ]
        if not held:
            return
        live = await self._deps.port.live([receipt for _, receipt in held])
        for (member, receipt), is_live in zip(held, live, strict=True):
            if not is_live:
                member.settled(receipt.message_id, receipt.lease)

    def _vanish(self) -> None:
        self.gone = True
        name = self.subscription.name
        self._fail(GaplessError(Code.SUBSCRIPTION_NOT_FOUND, f"subscription {name} does not exist"))
        for member in self.members:
            member.leave(Goodbye.SUBSCRIPTION_DELETED)

    def _fail(self, error: GaplessError) -> None:
        """Answer pulls with the error. Streams stay open and wait until it has passed."""
        for pull in self._pulls:
            pull.fail(error)
        if self.members and not self.gone:
            log.warning("subscription %s cannot claim: %s", self.subscription.name, error.detail)
