"""Rounds of the reaper when something cannot be decided."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress

import pytest

from subscriptions.domain.delivery import Touched
from subscriptions.domain.errors import GaplessError, unavailable
from subscriptions.engine.gate import Gate
from subscriptions.engine.reaper import Reaper


class Due:
    """Stands for the database: subscriptions that have one message each to decide, and those that fail."""

    def __init__(self, *ids: int, failing: Collection[int] = ()) -> None:
        self.ids = list(ids)
        self.failing = set(failing)
        self.asked: list[int] = []

    async def due(self, namespaces: Collection[str]) -> list[int]:
        return self.ids

    async def reap(self, subscription_id: int, settled: int, limit: int) -> tuple[int, tuple[Touched, ...]]:
        self.asked.append(subscription_id)
        if subscription_id in self.failing:
            raise unavailable("canceling statement due to statement timeout")
        return 1, ()

    def round(self, reaper: Reaper) -> list[int]:
        """Which were looked at in one round."""
        self.asked.clear()
        with suppress(GaplessError):
            asyncio.run(reaper.run_once())
        return list(self.asked)


async def _settled() -> tuple[int, int]:
    return 0, 0


def reaper_of(due: Due) -> Reaper:
    return Reaper(due, Gate(), settle=_settled, touched=lambda _: None, woken=lambda _: None)


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
    due.ids.remove(1)
    assert due.round(reaper) == [2]
    due.ids.insert(0, 1)
    assert due.round(reaper) == [1]
