"""The real engine and publisher in a world of faults, one world a seed. `GAPLESS_SIM_SEEDS` takes more of
them; a failing seed fails again by itself: `python -m tests.sim.world SEED`."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.sim import mutants
from tests.sim.world import play
from tests.support import ROOT

SEEDS = int(os.environ.get("GAPLESS_SIM_SEEDS", "800"))
PARTS = 4
MUTANT_SEEDS = 150


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Faults are what these worlds are made of: they need not be told of each."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(0 if SEEDS > 10_000 else 120)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_promise_holds_in_every_world(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        try:
            play(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize(
    "switch_off", [mutants.no_dedupe, mutants.no_backfill, mutants.no_sweep, mutants.no_watermark]
)
def test_no_healer_can_be_missed(
    switch_off: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    switch_off(monkeypatch)
    assert _first_failure(MUTANT_SEEDS) is not None


def test_a_crash_of_the_database_must_not_go_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    mutants.no_life(monkeypatch)
    assert _first_failure(2 * MUTANT_SEEDS, crash=True) is not None


def _first_failure(seeds: int, *, crash: bool | None = None) -> int | None:
    for seed in range(seeds):
        try:
            play(seed, crash=crash)
        except AssertionError:
            return seed
    return None


PROGRAM = "from tests.sim.world import fingerprint; print(fingerprint(range(40)))"


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
