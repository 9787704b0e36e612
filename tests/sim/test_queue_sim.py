"""The real consumers in a world of faults, one world a seed. `GAPLESS_SIM_SEEDS` takes more of them; a
failing seed fails again by itself: `python -m tests.sim.queue_world SEED`."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.sim import queue_mutants as mutants
from tests.sim.queue_world import play
from tests.support import ROOT

SEEDS = int(os.environ.get("GAPLESS_SIM_SEEDS", "200"))
PARTS = 2
MUTANT_SEEDS = 60
PROGRAM = "from tests.sim.queue_world import fingerprint; print(fingerprint(range(15)))"


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Faults are what these worlds are made of: they need not be told of each."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(0 if SEEDS > 5_000 else 120)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_promise_holds_in_every_world(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        try:
            play(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


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
    assert any(_fails(seed) for seed in range(MUTANT_SEEDS))


def _fails(seed: int) -> bool:
    try:
        play(seed)
    except AssertionError:
        return True
    return False


def test_a_seed_says_everything() -> None:
    """The same worlds in other processes, whatever their hash seeds, take the same steps."""
    prints = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "12345")
    }
    assert len(prints) == 1
    assert len(prints.pop().strip()) == hashlib.sha256().digest_size * 2
