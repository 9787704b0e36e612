"""Short drills: a standby that lacks messages is promoted under load, and then perhaps another one that does
not know of it. Without the fence, or with one that goes on by the clock alone, they fail."""

from __future__ import annotations

import asyncio

import pytest

from load.failover.__main__ import Change, change
from load.verdict import Breach

BEHIND = 60


@pytest.mark.drill
@pytest.mark.parametrize("fenced", [True, False])
def test_a_promoted_standby_gives_no_id_two_meanings_and_tells_what_is_lost(
    fenced: bool,
) -> None:
    verdict = asyncio.run(change(Change("standby", BEHIND), 1, fenced=fenced))
    assert verdict.ok is fenced, verdict.report()
    assert bool(verdict.counts[Breach.DISAGREE]) is not fenced


@pytest.mark.drill
@pytest.mark.parametrize("how", ["siblings", "copies", "crashes"])
def test_histories_that_do_not_know_of_each_other_give_no_id_two_meanings(how: str) -> None:
    verdict = asyncio.run(change(Change(how, 5, ahead_s=3600), 1))
    assert verdict.ok, verdict.report()


@pytest.mark.drill
def test_siblings_that_go_on_by_the_clock_alone_give_ids_two_meanings() -> None:
    verdict = asyncio.run(change(Change("siblings", 5), 1, alike=True))
    assert verdict.counts[Breach.DISAGREE]
