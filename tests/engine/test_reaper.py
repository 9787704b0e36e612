"""Rounds of the reaper when something cannot be decided."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress

import pytest

from subscriptions.domain.delivery import Touched
from subscriptions.domain.errors import GaplessError, unavailable
from subscriptions.engine.durable.reaper import Reaper
from subscriptions.engine.gate import Gate
from tests.contract.memory_deliveries import MemoryDeliveries
from tests.contract.memory_log import MemoryLog
from tests.contract.memory_queues import MemoryQueues


class Due(MemoryDeliveries):
    """Subscriptions whose messages expire, which are due for that, and those that fail."""

    def __init__(self, *ids: int, failing: Collection[int] = ()) -> None:
        super().__init__(MemoryQueues(MemoryLog()))
        for each in ids:
            assert self.queues.subscribe(f"q{each}", message_ttl=60).id == each
        self.failing = set(failing)
        self.asked: list[int] = []

    def expires(self, subscription_id: int, ttl: float | None) -> None:
        """Its messages do, or do not any more."""
        self.queues.change(f"q{subscription_id}", {"message_ttl": ttl})

    async def reap(self, subscription_id: int, settled: int, limit: int) -> tuple[int, tuple[Touched, ...]]:
        self.asked.append(subscription_id)
        if subscription_id in self.failing:
            raise unavailable("canceling statement due to statement timeout")
        return await super().reap(subscription_id, settled, limit)

    def round(self, reaper: Reaper) -> list[int]:
        """Which were looked at in one round."""
        self.asked.clear()
        with suppress(GaplessError):
            asyncio.run(reaper.run_once())
        return list(self.asked)


async def _settled() -> tuple[int, int]:
    return 0, 0


def reaper_of(due: Due) -> Reaper:
    gate = Gate()
    gate.open(["default"])
    return Reaper(due, gate, read_watermark=_settled, touched=lambda _: None, woken=lambda _: None)


def test_a_subscription_that_cannot_be_decided_about_comes_after_all_others() -> None:
    due = Due(1, 2, 3, failing=[1])
    reaper = reaper_of(due)
    due.round(reaper)
    assert due.round(reaper) == [2, 3, 1]
    assert due.round(reaper) == [2, 3, 1]


def test_of_several_that_fail_the_one_that_waits_longest_comes_first() -> None:
    due = Due(1, 2, 3, failing=[1, 2])
    reaper = reaper_of(due)
    assert [due.round(reaper)[-1] for _ in range(4)] == [1, 2, 1, 2]
    due.failing.clear()
    assert due.round(reaper) == [3, 1, 2]
    assert due.round(reaper) == [1, 2, 3]


def test_what_fails_is_told_and_forgotten_once_it_is_not_due_any_more() -> None:
    due = Due(1, 2, failing=[1])
    reaper = reaper_of(due)
    with pytest.raises(GaplessError):
        asyncio.run(reaper.run_once())
    due.expires(1, None)
    assert due.round(reaper) == [2]
    due.expires(1, 60)
    assert due.round(reaper) == [1]
