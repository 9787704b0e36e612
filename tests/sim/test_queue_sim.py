"""The real consumers in a world of faults, one world a seed. `GAPLESS_SIM_SEEDS` takes more of them; a
failing seed fails again by itself: `python -m tests.sim.queue_world SEED`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pytest

from tests.sim import queue_mutants as mutants
from tests.sim import seeds
from tests.sim.queue_world import play

SEEDS = int(os.environ.get("GAPLESS_SIM_SEEDS", "200"))
MUTANT_SEEDS = 250


@pytest.mark.timeout(0 if SEEDS > 5_000 else 600)
@pytest.mark.parametrize("worlds", seeds.in_tiers(range(100, 130), SEEDS))
def test_every_promise_holds_in_every_world(worlds: Sequence[int]) -> None:
    seeds.check_all(play, worlds)


@pytest.mark.drill
@pytest.mark.parametrize(
    "switch_off",
    [
        mutants.no_give_back,
        mutants.no_sweep,
        mutants.deaf_to_remote_acks,
        mutants.deals_beyond_room,
        mutants.impatient_pulls,
        mutants.stops_at_once,
        mutants.restless,
    ],
)
def test_no_care_can_be_missed(
    switch_off: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    switch_off(monkeypatch)
    assert seeds.first_failure(play, MUTANT_SEEDS) is not None


def test_a_seed_says_everything() -> None:
    seeds.check_repeatable("queue_world", 4)
