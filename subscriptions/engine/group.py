"""The members of one durable subscription in this process, and the one claim that serves them all.

A group claims for all its members at once and deals what it gets in turn. It claims again as soon as it was
told of something (a publish, a settlement, a new demand), when time makes something due, and every second
whatever it was told: so a lost hint delays a delivery by a second at most.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum

from subscriptions.domain.delivery import Claimed, Delivery, Loss, Receipt, Subscription, Touched
from subscriptions.domain.errors import Code, GaplessError, unavailable
from subscriptions.domain.pattern import compile_pattern, is_pattern
from subscriptions.engine.dealing import deal, hands_of_pulls, hands_of_streams
from subscriptions.engine.losses import Losses
from subscriptions.engine.pull import Pull
from subscriptions.ports import Clock, DeliveryPort

log = logging.getLogger(__name__)

SWEEP_S = 1.0
RETRY_S = 0.5
SETTLE_S = 0.25
"""A pull that waits for nothing still waits so long for messages that were there when it came."""
WATCH_S = 0.01
"""Between two looks at the watermark, or at a clock that may be ahead of the database's."""
STOP_S = 5.0
"""A claim under way when the process stops is waited for so long."""
MAX_CLAIM = 1000
MAX_ROUTES = 10_000
MAX_INBOX_BYTES = 1024 * 1024
"""A stream that has so much still to write is given nothing further."""
ALL = 2**53 - 1
"""More than any id: no watermark is needed."""


class Farewell(Enum):
    """Why a member's stream ends."""

    SHUTDOWN = "shutdown"
    SLOW_CONSUMER = "slow_consumer"
    SUBSCRIPTION_DELETED = "subscription_deleted"
    HISTORY_CHANGED = "history_changed"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a group needs from its process. `settle()` looks where the watermark is: the settled id, and the
    last id taken. `now_us` is the time of day in microseconds. `holder` names the process."""

    port: DeliveryPort
    holder: int
    clock: Clock
    now_us: Callable[[], int]
    settle: Callable[[], Awaitable[tuple[int, int]]]
    refresh: Callable[[int], Awaitable[Subscription | None]]
    touched: Callable[[tuple[Touched, ...]], None]
    give_back: Callable[[list[Receipt]], None]


class Member:
    """A stream of deliveries with at most `prefetch` of them unsettled. Its leases end with it."""

    __slots__ = (
        "_inbox_bytes",
        "_waiter",
        "companies",
        "farewell",
        "gone",
        "group",
        "holder",
        "inbox",
        "losses",
        "number",
        "outstanding",
        "prefetch",
        "seen",
    )

    def __init__(self, group: Group, prefetch: int, holder: int, number: int) -> None:
        self.group = group
        self.prefetch = prefetch
        self.holder = holder
        self.number = number
        """What the database knows it by."""
        self.inbox: list[Delivery] = []
        self.losses: list[Loss] = []
        """What it was not told yet; comes before what is in the inbox."""
        self._inbox_bytes = 0
        self.outstanding: dict[int, tuple[int, int]] = {}
        """Message id → (lease, deadline in microseconds)."""
        self.companies: dict[int, int] = {}
        """Of those in doubt, how many may be held beside and with it."""
        self.farewell: Farewell | None = None
        self.seen = 0
        """The largest id that it may have been given, where its farewell is a changed history."""
        self.gone = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def room(self) -> int:
        if self.farewell or self._inbox_bytes >= MAX_INBOX_BYTES:
            return 0
        most = min(self.prefetch, *self.companies.values()) if self.companies else self.prefetch
        return max(0, most - len(self.outstanding))

    def give(self, deliveries: list[Delivery]) -> None:
        """Nothing may be given too."""
        for delivery in deliveries:
            self._inbox_bytes += delivery.message.size_bytes
            self.group.holders[delivery.message.id] = self
            self.outstanding[delivery.message.id] = (delivery.lease, delivery.deadline_us)
            if delivery.company is not None:
                self.companies[delivery.message.id] = delivery.company
        assert len(self.outstanding) <= self.prefetch, "dealt no more than there was room for"
        self.inbox += deliveries
        if deliveries:
            self._wake()

    def tell(self, losses: list[Loss]) -> None:
        """Retention took something before anybody settled it."""
        self.losses += losses
        if losses:
            self._wake()

    def told(self, losses: list[Loss]) -> None:
        """It was told these, the first of what it was to be told."""
        if losses:
            del self.losses[: len(losses)]
            self.group.losses.told()

    def leave(self, reason: Farewell) -> None:
        """Nothing further is given; `next` tells so."""
        self.farewell = self.farewell or reason
        self._wake()

    def abandon(self) -> None:
        """The client is gone: `next` raises ConnectionResetError from here on."""
        self.gone = True
        self.leave(Farewell.SHUTDOWN)

    def settled(self, message_id: int, lease: int) -> bool:
        """Make room for one that was settled; whether it was this member's."""
        held = self.outstanding.get(message_id)
        if held is None or held[0] != lease:
            return False
        del self.outstanding[message_id]
        self.companies.pop(message_id, None)
        if self.group.holders.get(message_id) is self:
            del self.group.holders[message_id]
        return True

    def forget(self) -> list[tuple[int, int]]:
        """Hold nothing any more; (message id, lease) of what was held."""
        held = [(message_id, lease) for message_id, (lease, _) in self.outstanding.items()]
        for message_id, lease in held:
            self.settled(message_id, lease)
        self.inbox = []
        return held

    def extended(self, message_id: int, lease: int, deadline_us: int) -> None:
        if self.outstanding.get(message_id, (None,))[0] == lease:
            self.outstanding[message_id] = (lease, deadline_us)

    async def next(self, timeout_s: float) -> list[Delivery]:
        """What came since the last call; empty after `timeout_s` seconds, or when `farewell` is said: what is
        not taken by then was never delivered. Raises ConnectionResetError once the client is gone."""
        if not self.inbox and not self.losses and not self.farewell:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._waiter
            except TimeoutError:
                pass
            finally:
                self._waiter = None
        if self.gone:
            raise ConnectionResetError
        if self.farewell:
            return []
        deliveries, self.inbox = self.inbox, []
        if self._inbox_bytes >= MAX_INBOX_BYTES:
            self.group.wake()
        self._inbox_bytes = 0
        return deliveries

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Group:
    """Members and pulls of one subscription. Its task runs while there are any."""

    def __init__(self, subscription: Subscription, around: Surroundings) -> None:
        self.subscription = subscription
        self.members: dict[Member, None] = {}
        self.holders: dict[int, Member] = {}
        """Message id → the member that it was dealt to last."""
        self.gone = False
        self.losses = Losses(around.port, subscription.id)
        self._around = around
        self._pulls: dict[Pull, None] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._hinted = 0
        """What was told of, and what was committed before somebody came, lies at or below this id."""
        self._comers = 0
        self._comers_seen = 0
        self._turn = 0
        self._swept_at = float("-inf")
        self._claim_at = 0.0
        """A claim is due then, whatever is heard."""
        self._claimed_to = 0
        """What the watermark was at the last claim."""
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
        # One channel is read in its own order, which is complete as far as it is seen.
        self._single = len(subscription.channels) == 1 and not is_pattern(subscription.channels[0])
        self._routes: dict[str, bool] = {}
        self._comers += 1  # Nobody listened for these channels either.

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
            self._hinted = max(self._hinted, last_id)
            self._wake.set()

    def wake(self) -> None:
        """Something about this subscription has changed."""
        self._wake.set()

    def wake_fresh(self) -> None:
        """Its definition has changed, or where it stands: look at it, and at all leases, before the next
        claim."""
        self._swept_at = float("-inf")
        self._wake.set()

    def settled(self, message_id: int, lease: int) -> None:
        """A lease has ended: if it was a member's, there is room."""
        if (member := self.holders.get(message_id)) is not None:
            member.settled(message_id, lease)

    def extended(self, message_id: int, lease: int, deadline_us: int) -> None:
        """A lease lasts longer."""
        if (member := self.holders.get(message_id)) is not None:
            member.extended(message_id, lease, deadline_us)

    # --- who asks

    def add(self, asker: Pull | Member) -> None:
        if isinstance(asker, Pull):
            self._pulls[asker] = None
        else:
            self.members[asker] = None
        self._comers += 1
        self._wake.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def remove(self, asker: Pull | Member) -> None:
        if isinstance(asker, Pull):
            self._pulls.pop(asker, None)
        else:
            self.members.pop(asker, None)
        self._wake.set()

    def dismiss(self, reason: Farewell, seen: int = 0) -> None:
        """Everybody is told to go. `seen`: the largest id that they may have been given."""
        for member in self.members:
            member.seen = seen
            member.leave(reason)
        for pull in self._pulls:
            pull.resolve([])
        self._wake.set()

    async def stop(self) -> None:
        """Let a claim that is under way end, and what it gave go back; then nothing more is claimed."""
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
            log.exception("subscription %s failed in a way nobody foresaw", self.subscription.name)
            self._fail(unavailable("claiming failed; what was leased comes back when its lease ends"))
        self._claim_at = 0.0
        return RETRY_S

    async def _round(self, woken: bool) -> float:
        """One claim if there is room and something may have changed; seconds until the next look at the
        latest."""
        around = self._around
        if around.clock() - self._swept_at >= SWEEP_S:
            await self._sweep()
        if self.gone or not (any(p.room for p in self._pulls) or any(m.room for m in self.members)):
            return SWEEP_S
        waiting = list(self._pulls)
        comers = self._comers
        settled, last_id = (ALL, 0) if self._single else await around.settle()
        if comers > self._comers_seen:
            self._comers_seen, self._hinted = comers, max(self._hinted, last_id)
        for pull in waiting:
            pull.last_id = last_id if pull.last_id is None else pull.last_id
        if not woken and settled <= self._claimed_to and around.clock() < self._claim_at:
            self._expire(settled, whole=True)
            return self._until_next(settled)
        return await self._claim(settled)

    async def _claim(self, settled: int) -> float:
        """For streams or for pulls, by turns, so that neither starves the other: the leases of streams end
        with this process, those of pulls do not. What is in doubt may be for one of them only: then the
        others are asked too."""
        around = self._around
        self._turn += 1
        streams = hands_of_streams(self.members, self._turn, MAX_CLAIM)
        pulls = hands_of_pulls(self._pulls, MAX_CLAIM)
        turns = [hands for hands in ((streams, pulls) if self._turn % 2 == 0 else (pulls, streams)) if hands]
        for hands in turns or [[]]:
            holder = around.holder if hands is streams else 0
            claimed = await around.port.claim(self.subscription.id, settled, len(hands), holder, hands)
            around.touched(claimed.touched)
            if claimed.gone:
                self._vanish()
                return SWEEP_S
            self._tell(claimed)
            self._deal(list(claimed.deliveries))
            if claimed.more or not claimed.doubt:
                break
        self._claimed_to = settled
        self._claim_at = around.clock() + self._until_due(claimed)
        self._expire(settled, whole=not claimed.more)
        if claimed.more:
            self._claim_at = 0.0
            await asyncio.sleep(0)
            return 0.0
        return self._until_next(settled)

    def _tell(self, claimed: Claimed) -> None:
        """What was lost, before what is left."""
        members = [member for member in self.members if not member.farewell]
        if claimed.losses and members:
            news = self.losses.news(claimed.losses)
            for member in members:
                member.tell(news)

    def _until_due(self, claimed: Claimed) -> float:
        """Seconds until a claim may give something though nobody told of it."""
        if claimed.retry_at_us is None:
            return SWEEP_S
        due_s = (claimed.retry_at_us - self._around.now_us()) / 1e6
        return min(SWEEP_S, max(WATCH_S, due_s))

    def _until_next(self, settled: int) -> float:
        """Seconds until there is something to look at."""
        now = self._around.clock()
        pause_s = self._claim_at - now
        if settled < self._hinted or any(pull.until <= now for pull in self._pulls):
            pause_s = min(pause_s, WATCH_S)
        elif self._pulls:
            pause_s = min(pause_s, min(pull.until for pull in self._pulls) - now)
        return max(pause_s, 0.0)

    async def _pause(self, pause_s: float) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _deal(self, deliveries: list[Delivery]) -> None:
        """To whom they were leased, if they are still there."""
        if unwanted := deal(deliveries, self._pulls, self.members):
            self._around.give_back([self.receipt(delivery) for delivery in unwanted])

    def receipt(self, delivery: Delivery, holder: int = 0) -> Receipt:
        return Receipt(self.subscription.id, delivery.message.id, delivery.lease, holder)

    def _expire(self, settled: int, *, whole: bool) -> None:
        """Pulls that have waited long enough get nothing. What was committed before one came is looked at
        first: the watermark may be some milliseconds behind it, and a claim that stopped at a bound of work
        is not the `whole`."""
        now = self._around.clock()
        for pull in self._pulls:
            looked = whole and pull.last_id is not None and settled >= pull.last_id
            if pull.until <= now and (looked or pull.until + SETTLE_S <= now):
                pull.resolve([])

    async def _sweep(self) -> None:
        """Look at what nobody may have told: the definition, and leases that ended."""
        whole, self._swept_at = self._swept_at < 0, self._around.clock()
        found = await self._around.refresh(self.subscription.id)
        if found is None:
            self._vanish()
            return
        if found.channels != self.subscription.channels:
            self._follow(found)
        self.subscription = found
        await self._look_after_leases(whole=whole)

    async def _look_after_leases(self, *, whole: bool) -> None:
        """Of streams that have no room, and those past their deadline; or all."""
        now_us = self._around.now_us()
        held = [
            (member, Receipt(self.subscription.id, message_id, lease))
            for member in self.members
            for message_id, (lease, deadline_us) in member.outstanding.items()
            if whole or member.room == 0 or deadline_us <= now_us
        ]
        if not held:
            return
        live = await self._around.port.live([receipt for _, receipt in held])
        for (member, receipt), is_live in zip(held, live, strict=True):
            if not is_live:
                member.settled(receipt.message_id, receipt.lease)

    def _vanish(self) -> None:
        self.gone = True
        name = self.subscription.name
        self._fail(GaplessError(Code.SUBSCRIPTION_NOT_FOUND, f"subscription {name} does not exist"))
        for member in self.members:
            member.leave(Farewell.SUBSCRIPTION_DELETED)

    def _fail(self, error: GaplessError) -> None:
        """Pulls are told of it; streams stay and see it pass."""
        for pull in self._pulls:
            pull.fail(error)
        if self.members and not self.gone:
            log.warning("subscription %s cannot claim: %s", self.subscription.name, error.detail)
