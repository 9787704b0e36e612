"""What decides about deliveries and knows who is there, over `MemoryQueues`; a test may make it slow or fail.

A decision that has begun is made whatever becomes of its caller, as in a database: a pause before it may say
that nothing was done, a pause after it loses the answer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any, TypeVar

from subscriptions.domain.delivery import (
    Claimed,
    Delivery,
    Hand,
    Looked,
    Loss,
    Nack,
    Outstanding,
    Reason,
    Receipt,
    Settled,
    Settlement,
    Subscription,
    Touched,
)
from subscriptions.domain.delivery import State as Standing
from subscriptions.domain.errors import Code, GaplessError
from tests.contract.memory import Pause, at_once
from tests.contract.memory_burial import Death
from tests.contract.memory_queues import LOOKAHEAD, Lane, MemoryQueues, Queue, Row, State
from tests.contract.memory_seats import Seats

T = TypeVar("T")
Decide = Callable[[Queue, Row, int], Awaitable[Settled]]
"""A row whose lease holds, and the time."""


class MemoryDeliveries:
    """Implements `DeliveryPort`, `ReapPort`, `DeparturePort` and `AttendancePort`; looks subscriptions up."""

    def __init__(self, queues: MemoryQueues, pause: Pause = at_once) -> None:
        self.queues = queues
        self._log = queues.log
        self._pause = pause

    async def _decide(self, step: str, decision: Callable[[], Coroutine[Any, Any, T]]) -> T:
        await self._pause(step)
        decided = await asyncio.shield(asyncio.ensure_future(decision()))
        await self._pause(f"{step}, done")
        return decided

    # --- looking up

    async def get(self, namespace: str, name: str, *, stats: bool) -> Subscription:
        await self._pause("get")
        queue = self.queues.find(namespace, name)
        await self._pause("got")
        if queue is None:
            raise GaplessError(Code.SUBSCRIPTION_NOT_FOUND, f"subscription {name} does not exist")
        return queue.subscription

    async def by_id(self, ids: Sequence[int]) -> list[Subscription]:
        await self._pause("by_id")
        return [self.queues.queues[i].subscription for i in ids if i in self.queues.queues]

    # --- who is there

    async def attend(self, subscription_id: int, holder: int) -> bool:
        await self._pause("attend")
        if subscription_id not in self.queues.queues:
            return False
        self.queues.attendance.add((subscription_id, holder))
        return True

    async def leave(self, subscription_id: int, holder: int) -> None:
        await self._pause("leave")
        self.queues.attendance.discard((subscription_id, holder))

    async def reported(self, subscription_id: int, losses: Sequence[Loss]) -> None:
        await self._pause("reported")
        if (queue := self.queues.queues.get(subscription_id)) is not None:
            self.queues.told(queue, losses)

    # --- claiming

    async def claim(
        self, subscription_id: int, settled: int, limit: int, holder: int = 0, hands: Sequence[Hand] = ()
    ) -> Claimed:
        hands = list(hands[:limit]) or [Hand(0, 0)] * limit
        return await self._decide("claim", lambda: self._claim(subscription_id, settled, holder, hands))

    async def _claim(self, subscription_id: int, settled: int, holder: int, hands: list[Hand]) -> Claimed:
        queue = self.queues.queues.get(subscription_id)
        if queue is None:
            return Claimed(gone=True)
        async with queue.lock:
            if subscription_id not in self.queues.queues:
                return Claimed(gone=True)
            now_us = self._log.now_us()
            deaths = self.queues.end_leases(queue, now_us)
            self.queues.refilter(queue, now_us)
            paused = queue.subscription.paused
            room = 0 if paused else min(len(hands), queue["max_in_flight"] - len(queue.leased()))
            fence = queue.fence = next(self.queues.fences)
            seats = Seats(queue, hands)
            taken = self._take_due(queue, room, fence, now_us, deaths, seats)
            left = min(room - len(taken), len(seats.hands))
            taken += self._take_new(queue, settled, left, fence, now_us, deaths, seats)
            for delivery in taken:
                queue.rows[delivery.message.id].holder = holder
            _, touched = await self.queues.bury(queue, deaths)
            due = [r.at_us for r in queue.rows.values() if r.state is State.LEASED or _later(r, now_us)]
            more = 0 < room == len(taken)
            doubt = any(row.company is not None for row in queue.rows.values())
            gaps = self.queues.gaps(queue)
            return Claimed(tuple(taken), min(due, default=None), more, False, paused, touched, doubt, gaps)

    def _take_due(
        self, queue: Queue, room: int, fence: int, now_us: int, deaths: list[Death], seats: Seats
    ) -> list[Delivery]:
        taken: list[Delivery] = []
        while len(taken) < room:
            due = [r for r in queue.rows.values() if r.state is State.DUE and r.at_us <= now_us]
            if not due:
                break
            row = seats.next(due)
            if row is None:
                break
            if self.queues.is_removed(row):
                queue.drop([row], now_us)
                self.queues.removed(queue, row.message)
            elif death := self.queues.verdict(queue, row, now_us):
                queue.drop([row], now_us)
                deaths.append(death)
            else:
                taken.append(queue.lease(row, fence, now_us, seats.take(row)))
        return sorted(taken, key=lambda delivery: delivery.message.id)

    def _take_new(
        self,
        queue: Queue,
        settled: int,
        room: int,
        fence: int,
        now_us: int,
        deaths: list[Death],
        seats: Seats,
    ) -> list[Delivery]:
        """Whose lane is taken waits as a row, so that others can pass it."""
        settled = self.queues.readable(queue, settled)
        taken: list[Delivery] = []
        if room <= 0:
            return taken
        waiting = sum(row.state is State.WAITING for row in queue.rows.values())
        lanes = {row.lane for row in queue.rows.values()} - {None}
        reached = self.queues.complete_to(queue, settled)
        for channel_id, message in self.queues.matching(queue, settled):
            lane = queue.lane_of(channel_id, message)
            waits = lane in lanes
            if queue.is_late(message, now_us):
                deaths.append(Death(message, Reason.EXPIRED))
                continue
            if (waiting == LOOKAHEAD) if waits else (len(taken) == room):
                reached = message.id - 1
                break
            row = Row(message, State.WAITING, now_us, lane, fence)
            queue.rows[message.id] = row
            if waits:
                waiting += 1
            else:
                taken.append(queue.lease(row, fence, now_us, seats.hands.pop(0).member))
                lanes |= {lane} - {None}
        self.queues.advance(queue, reached)
        return taken

    # --- settling

    async def ack(self, receipts: Sequence[Receipt]) -> list[Settled]:
        return await self._decide("ack", lambda: self._each(receipts, self._ack))

    async def _ack(self, queue: Queue, row: Row, now_us: int) -> Settled:
        queue.drop([row], now_us)
        queue.acked.append(row.message.id)
        return Settled(Settlement.ACKED)

    async def nack(
        self, receipts: Sequence[Receipt], nack: Nack
    ) -> tuple[list[Settled], tuple[Touched, ...]]:
        touched: list[Touched] = []

        async def settle(queue: Queue, row: Row, now_us: int) -> Settled:
            return await self._nack(queue, row, now_us, nack, touched)

        settled = await self._decide("nack", lambda: self._each(receipts, settle))
        return settled, tuple({t.channel: t for t in touched}.values())

    async def _nack(self, queue: Queue, row: Row, now_us: int, nack: Nack, touched: list[Touched]) -> Settled:
        error = nack.reason or "nacked"
        row.strikes, row.company = row.strikes + 1, None
        if not nack.dead_letter and not queue.is_spent(row):
            backoff = queue["backoff"] or [0]
            delay = backoff[min(row.attempts, len(backoff)) - 1] if nack.delay is None else nack.delay
            queue.back(row, now_us + round(delay * 1_000_000), error)
            return Settled(Settlement.NACKED)
        queue.drop([row], now_us)
        reason = Reason.REJECTED if nack.dead_letter else Reason.MAX_DELIVER
        row.last_error = error
        entries, published = await self.queues.bury(queue, [row.death(reason)])
        touched += published
        return Settled(Settlement.NACKED, dead_letter=entries.get(row.message.id))

    async def extend(self, receipts: Sequence[Receipt], ack_wait_s: float | None) -> list[Settled]:
        async def settle(queue: Queue, row: Row, now_us: int) -> Settled:
            wait_s = queue["ack_wait"] if ack_wait_s is None else ack_wait_s
            row.at_us = now_us + round(wait_s * 1_000_000)
            return Settled(Settlement.EXTENDED, deadline_us=row.at_us)

        return await self._decide("extend", lambda: self._each(receipts, settle))

    async def give_back(self, receipts: Sequence[Receipt], delay_s: float | None) -> list[Settled]:
        async def settle(queue: Queue, row: Row, now_us: int) -> Settled:
            row.attempts -= 1
            queue.back(row, now_us + round((delay_s or 0) * 1_000_000), row.last_error)
            return Settled(Settlement.RELEASED)

        return await self._decide("give_back", lambda: self._each(receipts, settle))

    async def release(self, receipts: Sequence[Receipt], *, delivered: bool) -> tuple[Touched, ...]:
        return await self._decide("release", lambda: self._release(receipts, delivered))

    async def _release(self, receipts: Sequence[Receipt], delivered: bool) -> tuple[Touched, ...]:
        queue = self.queues.queues.get(receipts[0].subscription_id)
        if queue is None:
            return ()
        async with queue.lock:
            now_us = self._log.now_us()
            rows = [queue.rows[r.message_id] for r in receipts if queue.held(r, -1)]
            held = Counter(row.member for row in rows)
            for row in rows:
                if delivered:
                    queue.went_silent(row, held[row.member], alone=row.company == 1 or held[row.member] == 1)
                    queue.back(row, now_us, "the member went away")
                else:
                    row.attempts -= 1
                    queue.back(row, now_us, row.last_error)
            last = [row for row in rows if delivered and queue.is_spent(row)]
            queue.drop(last, now_us)
            deaths = [row.death(Reason.MAX_DELIVER) for row in last]
            return (await self.queues.bury(queue, deaths))[1]

    async def withdraw(self, receipts: Sequence[Receipt]) -> None:
        await self._decide("withdraw", lambda: self._withdraw(receipts))

    async def _withdraw(self, receipts: Sequence[Receipt]) -> None:
        queue = self.queues.queues.get(receipts[0].subscription_id)
        if queue is not None:
            async with queue.lock:
                for row in [queue.rows[r.message_id] for r in receipts if queue.held(r, -1)]:
                    queue.back(row, self._log.now_us(), row.last_error)

    async def live(self, receipts: Sequence[Receipt]) -> list[bool]:
        await self._pause("live")
        now_us = self._log.now_us()
        queues = [self.queues.queues.get(receipt.subscription_id) for receipt in receipts]
        return [
            q is not None and q.held(r, now_us) is not None for q, r in zip(queues, receipts, strict=True)
        ]

    async def look(self, namespace: str, name: str, state: Standing | None, after: int, limit: int) -> Looked:
        await self._pause("look")
        queue = self.queues.find(namespace, name)
        if queue is None:
            raise GaplessError(Code.SUBSCRIPTION_NOT_FOUND, f"subscription {name} does not exist")
        found = [o for o in self._outstanding(queue) if o.message.id > after and state in (None, o.state)]
        cursor = found[min(limit, len(found)) - 1].message.id if found else after
        return Looked(tuple(found[:limit]), len(found) > limit, cursor)

    def _outstanding(self, queue: Queue) -> list[Outstanding]:
        """All of them, by id."""
        now_us = self._log.now_us()
        heads: dict[Lane | None, int] = {}
        found: list[Outstanding] = []
        for row in sorted(queue.rows.values(), key=lambda r: (r.state, r.message.id)):
            first = heads.setdefault(row.lane, row.message.id)
            live = row.state is State.LEASED and row.at_us > now_us
            over = queue.is_over(row, now_us) or queue.is_excluded(row)
            if self.queues.is_removed(row) or (over and not live):
                continue
            standing = _standing(row, now_us)
            at_us = row.at_us if standing in (Standing.LEASED, Standing.DELAYED) else None
            waits_for = first if row.state is State.WAITING else None
            member = row.member if live else None
            found.append(
                Outstanding(row.message, standing, row.attempts, at_us, member, waits_for, row.last_error)
            )
        for channel_id, message in self.queues.matching(queue, 2**53):
            if not queue.is_late(message, now_us):
                lane = queue.lane_of(channel_id, message)
                first = message.id if lane is None else heads.setdefault(lane, message.id)
                waits = None if first == message.id else first
                found.append(
                    Outstanding(message, Standing.WAITING if waits else Standing.READY, 0, waits_for=waits)
                )
        return sorted(found, key=lambda o: o.message.id)

    async def _each(self, receipts: Sequence[Receipt], decide: Decide) -> list[Settled]:
        settled: dict[int, Settled] = {}
        for subscription_id in sorted({r.subscription_id for r in receipts}):
            queue = self.queues.queues.get(subscription_id)
            mine = [(n, r) for n, r in enumerate(receipts) if r.subscription_id == subscription_id]
            if queue is None:
                settled |= {n: Settled(Settlement.UNKNOWN) for n, _ in mine}
                continue
            async with queue.lock:
                now_us = self._log.now_us()
                for n, receipt in mine:
                    row = queue.held(receipt, now_us)
                    there = receipt.message_id in queue.rows
                    missed = Settlement.LEASE_EXPIRED if there else Settlement.UNKNOWN
                    settled[n] = Settled(missed) if row is None else await decide(queue, row, now_us)
        return [settled[n] for n in range(len(receipts))]

    # --- reaping

    async def departed(self, namespaces: Collection[str]) -> list[tuple[int, int]]:
        await self._pause("departed")
        queues, gone = self.queues.queues, self.queues.gone
        self.queues.attendance = {each for each in self.queues.attendance if each[1] not in gone}
        asked = [i for i, queue in queues.items() if queue.subscription.namespace in namespaces]
        return sorted({(row.holder, i) for i in asked for row in self._left(i, gone)})

    async def release_departed(
        self, holder: int, subscription_id: int, limit: int
    ) -> tuple[int, tuple[Touched, ...]]:
        rows = self._left(subscription_id, {holder} & self.queues.gone)
        held = Counter(row.member for row in rows)
        most, members = 0, set[int]()
        for member in sorted(held):
            most += held[member]
            members |= {member} if most <= limit or not members else set()
        left = [Receipt(subscription_id, r.message.id, r.lease) for r in rows if r.member in members]
        return len(left), await self.release(left, delivered=True) if left else ()

    def _left(self, subscription_id: int, holders: set[int]) -> list[Row]:
        queue = self.queues.queues.get(subscription_id)
        return [row for row in queue.leased() if row.holder in holders] if queue is not None else []

    async def due(self, namespaces: Collection[str]) -> list[int]:
        await self._pause("due")
        now_us = self._log.now_us()
        return [
            i
            for i, queue in sorted(self.queues.queues.items())
            if queue.subscription.namespace in namespaces and self._may_have_to_die(queue, now_us)
        ]

    def _may_have_to_die(self, queue: Queue, now_us: int) -> bool:
        if queue["message_ttl"] is not None or queue["max_backlog"] is not None:
            return True
        ended = any(row.at_us <= now_us for row in queue.leased())
        return ended or any(queue.is_late(m, now_us) for _, m in self._log.by_id.values())

    async def reap(self, subscription_id: int, settled: int, limit: int) -> tuple[int, tuple[Touched, ...]]:
        return await self._decide("reap", lambda: self._reap(subscription_id, settled, limit))

    async def _reap(self, subscription_id: int, settled: int, limit: int) -> tuple[int, tuple[Touched, ...]]:
        queue = self.queues.queues.get(subscription_id)
        if queue is None or queue.lock.locked():
            return 0, ()
        async with queue.lock:
            now_us = self._log.now_us()
            settled = self.queues.readable(queue, settled)
            deaths = self.queues.end_leases(queue, now_us)
            self.queues.refilter(queue, now_us)
            deaths += self._expire_rows(queue, now_us, limit - len(deaths))
            deaths += self._expire_new(queue, settled, now_us, limit - len(deaths))
            if queue["max_backlog"] is not None:
                deaths += self._shorten(queue, settled, now_us, limit - len(deaths))
            _, touched = await self.queues.bury(queue, deaths)
            return len(deaths), touched

    def _expire_rows(self, queue: Queue, now_us: int, limit: int) -> list[Death]:
        rows = [queue.rows[i] for i in sorted(queue.rows) if queue.rows[i].state is not State.LEASED]
        late = [row for row in rows if queue.is_over(row, now_us)][: max(0, limit)]
        queue.drop(late, now_us)
        return [row.death(Reason.EXPIRED) for row in late]

    def _expire_new(self, queue: Queue, settled: int, now_us: int, limit: int) -> list[Death]:
        """What expires by its own time leaves a marker, wherever it lies; what the subscription's time ends
        lies at the frontier, for that is in order."""
        late = [
            message for _, message in self.queues.matching(queue, settled) if queue.is_late(message, now_us)
        ][: max(0, limit)]
        queue.ahead |= {message.id for message in late}
        return [Death(message, Reason.EXPIRED) for message in late]

    def _shorten(self, queue: Queue, settled: int, now_us: int, limit: int) -> list[Death]:
        """The oldest die first."""
        rows = [queue.rows[i] for i in sorted(queue.rows) if queue.rows[i].state is not State.LEASED]
        fresh = [message for _, message in self.queues.matching(queue, settled)]
        excess = max(0, min(limit, len(rows) + len(fresh) - queue["max_backlog"]))
        queue.drop(rows[:excess], now_us)
        deaths = [row.death(Reason.MAX_BACKLOG) for row in rows[:excess]]
        over = fresh[: excess - len(deaths)]
        if over:
            self.queues.advance(queue, over[-1].id)
        return deaths + [Death(message, Reason.MAX_BACKLOG) for message in over]


def _standing(row: Row, now_us: int) -> Standing:
    if row.state is State.WAITING:
        return Standing.WAITING
    if row.at_us <= now_us:
        return Standing.READY
    return Standing.LEASED if row.state is State.LEASED else Standing.DELAYED


def _later(row: Row, now_us: int) -> bool:
    return row.state is State.DUE and row.at_us > now_us
