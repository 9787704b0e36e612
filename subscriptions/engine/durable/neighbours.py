"""What `Consumers` needs of its process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from subscriptions.domain.delivery import Receipt, Subscription
from subscriptions.ports import AttendancePort, DeliveryPort


class Lookup(Protocol):
    """Finds subscriptions."""

    async def get(self, namespace: str, name: str, *, stats: bool) -> Subscription: ...

    async def by_id(self, ids: Sequence[int]) -> list[Subscription]: ...


class Port(DeliveryPort, AttendancePort, Protocol):
    """The ports that `Consumers` needs."""


class Announce(Protocol):
    """Passes on to the other processes what was settled here: in which subscriptions, and which leases that
    other processes stream; of these, which were released."""

    def __call__(
        self, subscription_ids: list[int], receipts: list[Receipt], released: list[Receipt], /
    ) -> None: ...
