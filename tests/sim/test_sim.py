"""The real engine and publisher in a world of faults, one world a seed. `GAPLESS_SIM_SEEDS` takes more of
them; a failing seed fails again by itself: `python -m tests.sim.world SEED`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from tests.sim import mutants, seeds
from tests.sim.world import play

SEEDS = int(os.environ.get("GAPLESS_SIM_SEEDS", "800"))
MUTANT_SEEDS = 150


@pytest.mark.timeout(0 if SEEDS > 10_000 else 600)
@pytest.mark.parametrize("worlds", seeds.in_tiers(range(160), SEEDS))
def test_every_promise_holds_in_every_world(worlds: Sequence[int]) -> None:
    seeds.check_all(play, worlds)


@pytest.mark.drill
@pytest.mark.parametrize(
    "switch_off",
    [
        mutants.no_dedupe,
        mutants.no_backfill,
        mutants.no_sweep,
        mutants.no_watermark,
        mutants.plain_read,
    ],
)
def test_no_healer_can_be_missed(
    switch_off: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    switch_off(monkeypatch)
    assert seeds.first_failure(play, MUTANT_SEEDS) is not None


@pytest.mark.drill
def test_a_crash_of_the_database_must_not_go_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    mutants.no_life(monkeypatch)
    assert seeds.first_failure(partial(play, crash=True), 2 * MUTANT_SEEDS) is not None


@pytest.mark.parametrize("worlds", seeds.in_tiers(range(280, 360), SEEDS // 2))
def test_every_promise_holds_where_the_primary_changes(worlds: Sequence[int]) -> None:
    seeds.check_all(partial(play, fail_over=True), worlds)


@pytest.mark.drill
@pytest.mark.parametrize("switch_off", [mutants.no_fence, mutants.numbers_alone, mutants.higher_numbers_only])
def test_a_change_of_the_primary_must_not_go_unnoticed(
    switch_off: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    switch_off(monkeypatch)
    assert seeds.first_failure(partial(play, fail_over=True), 4 * MUTANT_SEEDS) is not None


def test_a_seed_says_everything() -> None:
    seeds.check_repeatable("world", 12)
