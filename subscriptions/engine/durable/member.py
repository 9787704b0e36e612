"""A stream of deliveries, as this process holds it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from subscriptions.domain.delivery import Delivery, Loss, Receipt, Subscription
from subscriptions.domain.goodbye import Goodbye
from subscriptions.engine.durable.pull import Pull
from subscriptions.engine.entry import OVERHEAD_BYTES

MAX_INBOX_BYTES = 1024 * 1024
"""A stream with this many bytes still to write gets no further deliveries."""
REST_S = 0.5
"""How long a stream gets nothing after its client gave back half of what it held, or more. A client that
leaves gives back and then closes: what it were handed in between would be an attempt of nobody."""


class MemberGroup(Protocol):
    """The group that a member belongs to: the members of one subscription in this process."""

    subscription: Subscription
    members: dict[Member, None]
    holders: dict[int, Member]

    @property
    def idle(self) -> bool: ...

    def receipt(self, delivery: Delivery, holder: int = 0) -> Receipt: ...

    def remove(self, asker: Pull | Member) -> None: ...

    def reported(self) -> None: ...

    def wake(self) -> None: ...


class Member:
    """A stream of deliveries with at most `prefetch` of them unsettled. Its leases end with it."""

    __slots__ = (
        "_count",
        "_inbox_bytes",
        "_resting",
        "_waiter",
        "companies",
        "dismissed",
        "gone",
        "goodbye",
        "group",
        "holder",
        "inbox",
        "losses",
        "number",
        "outstanding",
        "prefetch",
        "seen",
    )

    def __init__(self, group: MemberGroup, prefetch: int, holder: int, number: int) -> None:
        self.group = group
        self.prefetch = prefetch
        self.holder = holder
        self.number = number
        """The number that names it in the database."""
        self.inbox: list[Delivery] = []
        self.losses: list[Loss] = []
        """Losses that it was not told yet; they come before the inbox."""
        self._inbox_bytes = 0
        self._count: Callable[[int], None] | None = None
        self.outstanding: dict[int, tuple[int, int]] = {}
        """Message id → (lease, deadline in microseconds)."""
        self.companies: dict[int, int] = {}
        """Id of a message in doubt → how many messages may be held together with it, itself included."""
        self.goodbye: Goodbye | None = None
        self.dismissed = False
        """Whether the service ended it, and not its client: then no message that it held can be the cause."""
        self.seen = 0
        """The largest id that it may have been given; set if its goodbye is a changed history."""
        self.gone = False
        self._waiter: asyncio.Future[None] | None = None
        self._resting: asyncio.TimerHandle | None = None

    @property
    def room(self) -> int:
        if self.goodbye or self._resting or self._inbox_bytes >= MAX_INBOX_BYTES:
            return 0
        most = min(self.prefetch, *self.companies.values()) if self.companies else self.prefetch
        return max(0, most - len(self.outstanding))

    def give(self, deliveries: list[Delivery]) -> None:
        """Add deliveries to the inbox; the list may be empty."""
        if len(self.inbox) > len(self.outstanding):
            self.inbox = self._leased()
            self._weigh(_size_bytes(self.inbox) - self._inbox_bytes)
        for delivery in deliveries:
            self.group.holders[delivery.message.id] = self
            self.outstanding[delivery.message.id] = (delivery.lease, delivery.deadline_us)
            if delivery.company is not None:
                self.companies[delivery.message.id] = delivery.company
        assert len(self.outstanding) <= self.prefetch, "dealt no more than there was room for"
        self.inbox += deliveries
        if deliveries:
            self._weigh(_size_bytes(deliveries))
            self._wake()

    def count_with(self, count: Callable[[int], None]) -> None:
        """From here on, `count` is called with how many bytes more (or fewer) are in the inbox."""
        self._count = count
        count(self._inbox_bytes)

    def _leased(self) -> list[Delivery]:
        """The inbox without deliveries whose leases have ended: others may have them by now."""
        held = self.outstanding
        return [each for each in self.inbox if held.get(each.message.id, (None,))[0] == each.lease]

    def _weigh(self, more_bytes: int) -> None:
        self._inbox_bytes += more_bytes
        if self._count is not None and more_bytes:
            self._count(more_bytes)

    def tell(self, losses: list[Loss]) -> None:
        """Add losses: retention removed messages before they were settled."""
        self.losses += losses
        if losses:
            self._wake()

    def reported(self, losses: list[Loss]) -> None:
        """Remove these losses, the first in its list: the client was told."""
        if losses:
            del self.losses[: len(losses)]
            self.group.reported()

    def leave(self, reason: Goodbye) -> None:
        """The service ends it: give it nothing more. `next` returns at once from here on."""
        self.dismissed = self.dismissed or self.goodbye is None
        self._end(reason)

    def depart(self) -> None:
        """Its client ends it. Otherwise as `leave`."""
        self._end(Goodbye.SHUTDOWN)

    def abandon(self) -> None:
        """The client is gone: `next` raises ConnectionResetError from here on."""
        self.gone = True
        self.depart()

    def _end(self, reason: Goodbye) -> None:
        self.goodbye = self.goodbye or reason
        self._wake()

    def settled(self, message_id: int, lease: int) -> bool:
        """Make room for a message that was settled; returns whether this member held it."""
        held = self.outstanding.get(message_id)
        if held is None or held[0] != lease:
            return False
        del self.outstanding[message_id]
        self.companies.pop(message_id, None)
        if self.group.holders.get(message_id) is self:
            del self.group.holders[message_id]
        return True

    def gave_back(self, count: int) -> None:
        """Its client released so many. If that was half of what it held, or more, give it nothing for
        `REST_S` seconds, and let its inbox wait."""
        if count >= len(self.outstanding):
            if self._resting is not None:
                self._resting.cancel()
            self._resting = asyncio.get_running_loop().call_later(REST_S, self._end_rest)

    def _end_rest(self) -> None:
        self._resting = None
        self.group.wake()
        if self.inbox:
            self._wake()

    def forget(self) -> list[tuple[int, int]]:
        """Drop all that it holds; returns (message id, lease) of each."""
        if self._resting is not None:
            self._resting.cancel()
        held = [(message_id, lease) for message_id, (lease, _) in self.outstanding.items()]
        for message_id, lease in held:
            self.settled(message_id, lease)
        self.inbox = []
        self._weigh(-self._inbox_bytes)
        return held

    def extended(self, message_id: int, lease: int, deadline_us: int) -> None:
        if self.outstanding.get(message_id, (None,))[0] == lease:
            self.outstanding[message_id] = (lease, deadline_us)

    async def next(self, timeout_s: float | None) -> list[Delivery]:
        """`take` after `news`."""
        await self.news(timeout_s)
        return self.take()

    async def news(self, timeout_s: float | None) -> bool:
        """Return once there is something to take or to tell, or the member has to leave; False after
        `timeout_s` seconds (None: never)."""
        if (not self.inbox or self._resting) and not self.losses and not self.goodbye:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._waiter
            except TimeoutError:
                return False
            finally:
                self._waiter = None
        return True

    def take(self) -> list[Delivery]:
        """The deliveries since the last call. Empty once `goodbye` is set: deliveries not taken by then were
        never delivered. Raises ConnectionResetError once the client is gone."""
        if self.gone:
            raise ConnectionResetError
        if self.goodbye or self._resting:
            return []
        deliveries = self._leased()
        if self._inbox_bytes >= MAX_INBOX_BYTES:
            self.group.wake()
        self.inbox = []
        self._weigh(-self._inbox_bytes)
        return deliveries

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _size_bytes(deliveries: list[Delivery]) -> int:
    return sum([each.message.size_bytes + OVERHEAD_BYTES for each in deliveries])
