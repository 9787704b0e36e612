"""Consumers with one of their cares switched off, for tests that must then fail."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from subscriptions.domain.delivery import Delivery, Receipt
from subscriptions.engine.durable import group
from subscriptions.engine.durable.consumers import Consumers
from subscriptions.engine.durable.endings import Endings
from subscriptions.engine.durable.group import Group
from subscriptions.engine.durable.member import Member
from subscriptions.engine.durable.pull import Pull


def no_give_back(patch: pytest.MonkeyPatch) -> None:
    """Whoever leaves keeps its leases until they end."""
    patch.setattr(Endings, "begin", lambda self, *parts: None)


def no_sweep(patch: pytest.MonkeyPatch) -> None:
    """Only what is heard is looked at."""
    patch.setattr(group, "SWEEP_S", 1e6)


def deaf_to_remote_acks(patch: pytest.MonkeyPatch) -> None:
    """What another process settled makes no room here."""
    hear = Consumers.hear_settled

    def deaf(
        self: Consumers,
        subscription_ids: Sequence[int],
        receipts: Sequence[Receipt],
        released: Sequence[Receipt] = (),
    ) -> None:
        hear(self, subscription_ids, ())

    patch.setattr(Consumers, "hear_settled", deaf)


def deals_beyond_room(patch: pytest.MonkeyPatch) -> None:
    """The first who asks gets everything."""

    def deal(self: Group, deliveries: list[Delivery], *, streams: bool) -> None:
        askers: list[Pull | Member] = [*self._pulls, *self.members]
        for asker in askers:
            if isinstance(asker, Pull):
                asker.resolve(deliveries)
            else:
                asker.give(deliveries)
            return

    def give(self: Member, deliveries: list[Delivery]) -> None:
        self.outstanding |= {d.message.id: (d.lease, d.deadline_us) for d in deliveries}
        self.inbox += deliveries
        self._wake()

    patch.setattr(Group, "_deal", deal)
    patch.setattr(Member, "give", give)


def impatient_pulls(patch: pytest.MonkeyPatch) -> None:
    """A pull that waits for nothing is answered before anybody looked."""

    def expire(self: Group, settled: int, *, whole: bool) -> None:
        for pull in self._pulls:
            if pull.until <= self._deps.clock():
                pull.resolve([])

    patch.setattr(Group, "_expire", expire)


def stops_at_once(patch: pytest.MonkeyPatch) -> None:
    """A claim under way when the process stops is left to itself."""

    async def stop(self: Group) -> None:
        self._stopped = True

    patch.setattr(Group, "stop", stop)


def restless(patch: pytest.MonkeyPatch) -> None:
    """Claims again and again."""
    claim = Group._claim

    async def again(self: Group, settled: int) -> float:
        await claim(self, settled)
        self._schedule.claim_at_once()
        return 0.05

    patch.setattr(Group, "_claim", again)
