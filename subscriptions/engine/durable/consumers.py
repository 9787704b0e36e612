"""Durable subscriptions for any face: pulls, streams of deliveries, settlements. One for each process."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from subscriptions.domain.delivery import (
    Delivery,
    Looked,
    Nack,
    Receipt,
    Settled,
    Settlement,
    State,
    Subscription,
    Touched,
    by_subscription,
)
from subscriptions.domain.errors import Code, GaplessError, unavailable
from subscriptions.domain.goodbye import Goodbye
from subscriptions.engine.durable.attendance import WAITS_AFTER_S, Attendance
from subscriptions.engine.durable.endings import End, Endings
from subscriptions.engine.durable.group import Group, GroupDependencies
from subscriptions.engine.durable.leases import Leases
from subscriptions.engine.durable.member import Member, MemberGroup
from subscriptions.engine.durable.neighbours import Announce, Lookup, Port
from subscriptions.engine.durable.pull import Pull, Pulled
from subscriptions.engine.durable.settler import Settler
from subscriptions.ports import Clock, ReadWatermark

MAX_KNOWN = 10_000
MAX_MEMBERS = 10_000

UNKNOWN = Settled(Settlement.UNKNOWN)


class Consumers:
    """The groups of all subscriptions in this process."""

    def __init__(
        self,
        port: Port,
        lookup: Lookup,
        *,
        clock: Clock,
        now_us: Callable[[], int],
        read_watermark: ReadWatermark,
        touched: Callable[[tuple[Touched, ...]], None],
        tell: Announce,
        max_members: int = MAX_MEMBERS,
    ) -> None:
        self.holder = secrets.randbits(62) | 1
        """Names this process in the receipts of deliveries that it streams."""
        self.attendance = Attendance(port, self.holder)
        self._port = port
        self._lookup = lookup
        self._clock = clock
        self._tell = tell
        self._touched = touched
        self._max_members = max_members
        self._endings = Endings(port, touched, self._woke)
        self.leases = Leases(self._endings.withdraw, now_us)
        """What pulls hand out. Streams end their leases themselves."""
        self._deps = GroupDependencies(
            port, self.holder, clock, now_us, read_watermark, self._refresh, touched, self._endings.give_back
        )
        self._groups: dict[int, Group] = {}
        self._active: dict[int, Group] = {}
        """Groups that have members or pulls now."""
        self._known: dict[tuple[str, str], Subscription] = {}
        self._owners: dict[int, tuple[str, str]] = {}
        """The namespaces of subscriptions, by id."""
        self._settler = Settler(port)
        self._members = self._opened = 0
        self._pulling = 0
        self.stopping = False

    def __repr__(self) -> str:
        return f"Consumers({self._members} members, {list(self._active.values())})"

    @property
    def members(self) -> int:
        """Streams of deliveries open now."""
        return self._members

    @property
    def settling(self) -> int:
        """Acks that no statement has taken up yet."""
        return self._settler.waiting

    def start(self) -> None:
        self._settler.start()

    def dismiss(self) -> None:
        """Hand out nothing more, and send streams a goodbye. Settlements are still taken."""
        self.stopping = True
        for group in self._active.values():
            group.dismiss(Goodbye.SHUTDOWN)

    def history_changed(self, seen: int) -> None:
        """The log's history changed, perhaps with the settlements: end all streams; clients come back. Ids of
        subscriptions and numbers of losses may mean something else, so nothing that goes by them stays."""
        self._known.clear()
        self._owners.clear()
        self._groups.clear()
        self.leases.forget()
        self.attendance.register_again()
        for group in self._active.values():
            group.dismiss(Goodbye.HISTORY_CHANGED, seen)

    async def stop(self) -> None:
        """Do as `dismiss`, then answer acks and end the leases of streams."""
        self.dismiss()
        await self._settler.stop()
        for group in list(self._active.values()):
            for member in list(group.members):
                self.close(member)
        await asyncio.gather(*(group.stop() for group in list(self._groups.values())))
        await self._endings.stop()
        await self.attendance.stop()

    # --- what it hears

    def follows(self, namespace: str, channel: str) -> bool:
        """Whether a member or pull here waits for messages of this channel."""
        return any(
            g.subscription.namespace == namespace and g.follows(channel) for g in self._active.values()
        )

    def hear(self, namespace: str, channel: str, last_id: int) -> None:
        """A message was committed, here or elsewhere."""
        for group in self._active.values():
            if group.subscription.namespace == namespace:
                group.hear(channel, last_id)

    def hear_settled(
        self,
        subscription_ids: Sequence[int],
        receipts: Sequence[Receipt],
        released: Sequence[Receipt] = (),
    ) -> None:
        """Something was settled or released, here or elsewhere: lanes may be free, members may have room."""
        for receipt in receipts:
            if group := self._groups.get(receipt.subscription_id):
                group.settled(receipt.message_id, receipt.lease)
        for part in by_subscription(released):
            if group := self._groups.get(part[0].subscription_id):
                group.released(part)
        for subscription_id in subscription_ids:
            if group := self._groups.get(subscription_id):
                group.wake()

    # --- handing out

    async def pull(self, namespace: str, name: str, limit: int, wait_s: float) -> Pulled:
        """Up to `limit` deliveries, as soon as there are any or something was lost; none after `wait_s`
        seconds. The caller must call `told` or `take_back` afterwards.

        Raises `subscription_not_found`, `rate_limited` with too many waiting, `unavailable`. A caller that
        is cancelled leaves nothing leased.
        """
        for _ in range(2):
            group = await self._group(namespace, name)
            self._refuse_if_stopping()
            self._refuse_if_full()
            pull = Pull(limit, self._clock() + wait_s)
            self._add(group, pull)
            self._pulling += 1
            try:
                deliveries = await self._answer(group, pull)
                return Pulled(group.subscription, deliveries, pull.losses)
            except asyncio.CancelledError:
                self.take_back(Pulled(group.subscription, pull.taken_back(), pull.losses))
                raise
            except GaplessError as error:
                self.take_back(Pulled(group.subscription, [], pull.losses))
                # It may have been created again under its old name: then it has another id.
                if error.code is not Code.SUBSCRIPTION_NOT_FOUND:
                    raise
                self._forget(group)
            finally:
                self._pulling -= 1
                self._remove(group, pull)
        raise GaplessError(Code.SUBSCRIPTION_NOT_FOUND, f"subscription {name} does not exist")

    async def _answer(self, group: Group, pull: Pull) -> list[Delivery]:
        """Wait for the answer. While a pull waits, it counts as a member."""
        subscription_id = group.subscription.id
        waits = False

        def come() -> None:
            nonlocal waits
            waits = True
            self.attendance.come(subscription_id)

        timer = asyncio.get_running_loop().call_later(WAITS_AFTER_S, come)
        try:
            return await pull.answer()
        finally:
            timer.cancel()
            if waits:
                self.attendance.go(subscription_id)

    def take_back(self, pulled: Pulled) -> None:
        """Give back what was pulled: the answer could not be sent."""
        number = pulled.subscription.id
        self._endings.give_back([Receipt(number, d.message.id, d.lease) for d in pulled.deliveries])
        if pulled.losses and (group := self._groups.get(number)) is not None:
            group.pulled_losses.take_back(pulled.losses)

    def reported(self, pulled: Pulled) -> None:
        """Note that the answer to the pull is on its way."""
        if pulled.losses and (group := self._groups.get(pulled.subscription.id)) is not None:
            group.pulled_losses.reported()

    async def open(self, namespace: str, name: str, prefetch: int) -> Member:
        """Open a stream of deliveries; end it with `close`. Raises `subscription_not_found`, `rate_limited`
        with too many of them, `unavailable`."""
        self._refuse_if_stopping()
        subscription = await self.find(namespace, name, fresh=True)
        if not await self.attendance.enter(subscription.id):
            raise GaplessError(Code.SUBSCRIPTION_NOT_FOUND, f"subscription {name} does not exist")
        try:
            self._refuse_if_stopping()
            self._refuse_if_full()
        except GaplessError:
            self.attendance.go(subscription.id)
            raise
        group = self._group_of(subscription)
        self._opened += 1
        member = Member(group, prefetch, self.holder, (self.holder + self._opened) % 2**62)
        self._members += 1
        self._add(group, member)
        return member

    def close(self, member: Member) -> None:
        """End the stream and its leases: its messages are due again at once. Deliveries that it never took do
        not count as delivered. Closing it again does nothing."""
        group = member.group
        if member not in group.members:
            return
        member.depart()
        untaken = [group.receipt(delivery) for delivery in member.inbox]
        unseen = {receipt.message_id for receipt in untaken}
        held = [Receipt(group.subscription.id, id_, lease) for id_, lease in member.forget()]
        taken = [receipt for receipt in held if receipt.message_id not in unseen]
        self._remove(group, member)
        self._members -= 1
        self.attendance.go(group.subscription.id)
        # Taken deliveries are given back first, so that they come again before those it never saw.
        end = End.WITHDRAWN if member.dismissed else End.DEPARTED
        self._endings.begin((taken, end), (untaken, End.UNDELIVERED))

    def give_back(self, member: Member, deliveries: Sequence[Delivery]) -> None:
        """End these leases of a member that could not use the deliveries: the messages are due again at once,
        and the attempt does not count."""
        for delivery in deliveries:
            member.settled(delivery.message.id, delivery.lease)
        self._endings.give_back([member.group.receipt(delivery) for delivery in deliveries])

    # --- settling

    async def ack(
        self, namespace: str, name: str | None, receipts: Sequence[Receipt | None]
    ) -> list[Settled]:
        """One result for each receipt, in order (None: it could not be read), after the commit. Receipts of
        other subscriptions are unknown; name None: any subscription in the namespace will do.

        Raises `subscription_not_found` if no subscription has this name, even if another process deleted it.
        """
        mine = await self._mine(namespace, name, receipts)
        settled = await self._settler.ack(mine) if mine else []
        self._was_settled(mine, settled)
        return await self._in_place(namespace, name, receipts, zip(mine, settled, strict=True))

    async def settle(
        self, subscription: Subscription, deliveries: Sequence[Delivery], holder: int = 0
    ) -> list[Delivery]:
        """Ack what is about to be handed out to somebody who settles nothing. Returns what may be handed out,
        after the commit: nobody else gets it. Raises as `ack`: then it may be settled or not."""
        receipts = [Receipt(subscription.id, d.message.id, d.lease, holder) for d in deliveries]
        settled = await self._settler.ack(receipts) if receipts else []
        self._was_settled(receipts, settled)
        done = zip(deliveries, settled, strict=True)
        return [delivery for delivery, result in done if result.status is Settlement.ACKED]

    async def nack(
        self, namespace: str, name: str | None, receipts: Sequence[Receipt | None], nack: Nack
    ) -> list[Settled]:
        """As `ack`, but with a commit for each subscription."""

        async def settle(part: list[Receipt]) -> list[Settled]:
            settled, touched = await self._port.nack(part, nack)
            self._touched(touched)
            return settled

        return await self._part_by_part(namespace, name, receipts, settle)

    async def release(
        self, namespace: str, name: str | None, receipts: Sequence[Receipt | None], delay_s: float | None
    ) -> list[Settled]:
        """As `nack`, for what was not worked on: `DeliveryPort.give_back`."""
        settle = partial(self._port.give_back, delay_s=delay_s)
        return await self._part_by_part(namespace, name, receipts, settle)

    async def _part_by_part(
        self,
        namespace: str,
        name: str | None,
        receipts: Sequence[Receipt | None],
        settle: Callable[[list[Receipt]], Awaitable[list[Settled]]],
    ) -> list[Settled]:
        done: list[tuple[Receipt, Settled]] = []
        for part in by_subscription(await self._mine(namespace, name, receipts)):
            settled = await settle(part)
            self._was_settled(part, settled)
            done += zip(part, settled, strict=True)
        return await self._in_place(namespace, name, receipts, done)

    async def extend(
        self,
        namespace: str,
        name: str | None,
        receipts: Sequence[Receipt | None],
        ack_wait_s: float | None,
    ) -> list[Settled]:
        """As `nack`; `ack_wait_s` None: the setting of the subscription."""
        done: list[tuple[Receipt, Settled]] = []
        for part in by_subscription(await self._mine(namespace, name, receipts)):
            done += zip(part, await self._port.extend(part, ack_wait_s), strict=True)
        for receipt, item in done:
            group = self._groups.get(receipt.subscription_id)
            if group is not None and item.deadline_us is not None:
                group.extended(receipt.message_id, receipt.lease, item.deadline_us)
        return await self._in_place(namespace, name, receipts, done)

    def was_settled(self, receipts: Sequence[Receipt]) -> None:
        """Note that these were settled by another call, in a transaction of its own."""
        self._was_settled(receipts, [Settled(Settlement.ACKED)] * len(receipts))

    def _was_settled(self, receipts: Sequence[Receipt], settled: Sequence[Settled]) -> None:
        by_status: dict[Settlement, list[Receipt]] = {}
        for receipt, item in zip(receipts, settled, strict=True):
            by_status.setdefault(item.status, []).append(receipt)
        done = [*by_status.get(Settlement.ACKED, ()), *by_status.get(Settlement.NACKED, ())]
        released = by_status.get(Settlement.RELEASED, [])
        if done or released:
            subscriptions = list({receipt.subscription_id: None for receipt in (*done, *released)})
            self.hear_settled(subscriptions, done, released)
            self._tell(subscriptions, self._of_others(done), self._of_others(released))

    def _of_others(self, receipts: list[Receipt]) -> list[Receipt]:
        return [r for r in receipts if r.holder not in (0, self.holder)]

    async def _mine(
        self, namespace: str, name: str | None, receipts: Sequence[Receipt | None]
    ) -> list[Receipt]:
        """The receipts of this subscription, or of any in the namespace, each once."""
        read = {r: None for r in receipts if r is not None}
        if name is None:
            ids = set(await self._owned(namespace, {r.subscription_id for r in read}))
        else:
            expected = next((r.subscription_id for r in read), None)
            ids = {(await self.find(namespace, name, expected=expected)).id}
        return [r for r in read if r.subscription_id in ids]

    async def _in_place(
        self,
        namespace: str,
        name: str | None,
        receipts: Sequence[Receipt | None],
        settled: Iterable[tuple[Receipt, Settled]],
    ) -> list[Settled]:
        """One result for each receipt, in order."""
        found: dict[Receipt | None, Settled] = dict(settled)
        results = [found.get(r, UNKNOWN) for r in receipts]
        if name is not None and all(item.status is Settlement.UNKNOWN for item in results):
            # No result shows that it still exists, and the cached definition may be older than its deletion.
            await self.find(namespace, name, fresh=True)
        return results

    async def live(self, receipts: Sequence[Receipt]) -> list[bool]:
        """Whether each receipt still holds its lease."""
        return await self._port.live(receipts)

    # --- looking

    async def look(self, namespace: str, name: str, state: State | None, after: int, limit: int) -> Looked:
        """Messages that are not settled, with ids after `after`; as `DeliveryPort.look`."""
        return await self._port.look(namespace, name, state, after, limit)

    # --- finding

    async def find(
        self, namespace: str, name: str, *, expected: int | None = None, fresh: bool = False
    ) -> Subscription:
        """The subscription of this name; read again if the cached one does not have the id `expected`."""
        known = self._known.get((namespace, name))
        if known is not None and not fresh and expected in (None, known.id):
            return known
        try:
            found = await self._lookup.get(namespace, name, stats=False)
        except GaplessError as error:
            if error.code is Code.SUBSCRIPTION_NOT_FOUND:
                self._known.pop((namespace, name), None)
            raise
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[namespace, name] = found
        return found

    async def names(self, namespace: str, receipts: Sequence[Receipt | None]) -> set[str]:
        """The names of the subscriptions in the namespace that these receipts are of."""
        return set((await self._owned(namespace, {r.subscription_id for r in receipts if r})).values())

    async def _owned(self, namespace: str, subscription_ids: set[int]) -> dict[int, str]:
        """The names of those in the namespace, by id. In one history, an id never has two names."""
        known = {number: self._owners.get(number) for number in subscription_ids}
        unheard = sorted(number for number, owner in known.items() if owner is None)
        if unheard:
            found = {each.id: (each.namespace, each.name) for each in await self._lookup.by_id(unheard)}
            if len(self._owners) >= MAX_KNOWN:
                self._owners.clear()
            self._owners |= found
            known |= found
        return {number: owner[1] for number, owner in known.items() if owner and owner[0] == namespace}

    def changed(self, namespace: str, name: str, subscription_id: int | None = None) -> None:
        """The subscription was changed through this process: all groups of it, here and in other processes,
        look at once. Other processes know it by its id, which is sent to them if it is known."""
        known = self._known.pop((namespace, name), None)
        ids = {known.id} if known is not None else set()
        if subscription_id is not None:
            ids.add(subscription_id)
        for group in self._active.values():
            if (group.subscription.namespace, group.subscription.name) == (namespace, name):
                ids.add(group.subscription.id)
                group.wake_fresh()
        self._tell(sorted(ids), [], [])

    def look_after_leases(self) -> None:
        """Check all leases, and tell the database of all members: it may have ended or forgotten some."""
        self.attendance.register_again()
        for group in self._active.values():
            group.wake_fresh()

    def changed_all(self, namespace: str) -> None:
        """As `changed`, for all subscriptions of a namespace; the other processes are told of all at once."""
        groups = [group for group in self._active.values() if group.subscription.namespace == namespace]
        for group in groups:
            self._known.pop((namespace, group.subscription.name), None)
            group.wake_fresh()
        self._tell([group.subscription.id for group in groups], [], [])

    async def _group(self, namespace: str, name: str) -> Group:
        return self._group_of(await self.find(namespace, name))

    def _group_of(self, subscription: Subscription) -> Group:
        group = self._groups.get(subscription.id)
        if group is None or group.gone:
            if len(self._groups) >= MAX_KNOWN:
                self._groups = dict(self._active)
            group = self._groups[subscription.id] = Group(subscription, self._deps)
        return group

    def _add(self, group: Group, asker: Pull | Member) -> None:
        group.add(asker)
        self._active[group.subscription.id] = group

    def _remove(self, group: MemberGroup, asker: Pull | Member) -> None:
        group.remove(asker)
        if group.idle and self._active.get(group.subscription.id) is group:
            del self._active[group.subscription.id]

    def _forget(self, group: Group) -> None:
        subscription = group.subscription
        self._known.pop((subscription.namespace, subscription.name), None)
        if self._groups.get(subscription.id) is group:
            del self._groups[subscription.id]

    async def _refresh(self, subscription_id: int) -> Subscription | None:
        found = await self._lookup.by_id([subscription_id])
        return found[0] if found else None

    def _woke(self, subscription_id: int) -> None:
        self.hear_settled([subscription_id], ())
        self._tell([subscription_id], [], [])

    def _refuse_if_full(self) -> None:
        if self._members + self._pulling >= self._max_members:
            raise GaplessError(Code.RATE_LIMITED, "this process serves no more members", retry_after=2)

    def _refuse_if_stopping(self) -> None:
        if self.stopping:
            raise unavailable("the server is stopping; another one will take you")
