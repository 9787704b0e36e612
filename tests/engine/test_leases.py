"""Which leases end with a credential."""

from __future__ import annotations

import pytest

from subscriptions.domain.delivery import Receipt
from subscriptions.domain.principal import Lifetime
from subscriptions.engine.durable import leases as module
from subscriptions.engine.durable.leases import Leases


class Stage:
    """Leases on a clock that the test moves."""

    def __init__(self) -> None:
        self.now_us = 0
        self.ended: list[Receipt] = []
        self.leases = Leases(self.ended.extend, lambda: self.now_us)

    def pull(self, lifetime: Lifetime, *messages: int, subscription: int = 1, until_us: int = 10) -> None:
        self.leases.hold(lifetime, [Receipt(subscription, number, 7) for number in messages], until_us)

    def numbers(self) -> list[tuple[int, int]]:
        return [(receipt.subscription_id, receipt.message_id) for receipt in self.ended]


def test_the_leases_of_one_credential_end_with_it() -> None:
    stage, ann, bob = Stage(), Lifetime(), Lifetime()
    stage.pull(ann, 1, 2)
    stage.pull(bob, 3)
    stage.pull(ann, 4, subscription=2)
    ann.end()
    assert stage.numbers() == [(1, 1), (1, 2), (2, 4)]
    bob.end()
    assert stage.numbers()[3:] == [(1, 3)]
    assert repr(stage.leases) == "Leases(0 of 0 credentials)"


def test_a_lease_that_ended_by_itself_is_forgotten_and_so_is_its_credential() -> None:
    stage, ann, bob = Stage(), Lifetime(), Lifetime()
    stage.pull(ann, 1)
    stage.now_us = 10
    stage.pull(bob, 2, until_us=20)
    assert repr(ann) == "Lifetime(0 watch it)"
    ann.end()
    assert stage.ended == []
    bob.end()
    assert stage.numbers() == [(1, 2)]


def test_what_is_pulled_on_a_credential_that_has_just_ended_ends_at_once() -> None:
    stage, ann = Stage(), Lifetime()
    ann.end()
    stage.pull(ann, 1)
    assert stage.numbers() == [(1, 1)]
    assert repr(stage.leases) == "Leases(0 of 0 credentials)"


def test_only_the_newest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    stage, ann, bob = Stage(), Lifetime(), Lifetime()
    stage.pull(ann, 1, 2)
    stage.pull(bob, 3, 4)
    assert repr(ann) == "Lifetime(0 watch it)"
    stage.pull(bob, *range(5, 9))
    assert repr(stage.leases) == "Leases(0 of 0 credentials)"
    bob.end()
    assert stage.ended == []


def test_nothing_ends_after_the_history_changed() -> None:
    stage, ann = Stage(), Lifetime()
    stage.pull(ann, 1)
    stage.leases.forget()
    ann.end()
    assert stage.ended == []


def test_many_end_in_several_transactions() -> None:
    parts: list[int] = []
    leases, ann = Leases(lambda receipts: parts.append(len(receipts)), lambda: 0), Lifetime()
    for first in range(0, 2500, 500):
        leases.hold(ann, [Receipt(1, first + number, 7) for number in range(500)], 10)
    ann.end()
    assert parts == [1000, 1000, 500]
