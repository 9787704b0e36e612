"""What is asked of worlds by their seeds, whatever they are made of."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.support import ROOT

Play = Callable[[int], str]
"""Runs the world of one seed: its fingerprint."""

_PROGRAM = "from tests.sim import {0}, seeds; print(seeds.fingerprint({0}.play, {1}))"


def first_failure(play: Play, seeds: int) -> int | None:
    """The first seed whose world breaks a promise."""
    for seed in range(seeds):
        try:
            play(seed)
        except AssertionError:
            return seed
    return None


def in_tiers(landing: range, count: int) -> list[Any]:
    """The seeds of the landing tier, and in four parts, among the drills, the rest of `count`."""
    rest = [seed for seed in range(count) if seed not in landing]
    return [
        pytest.param(landing, id=f"{landing.start} to {landing.stop}"),
        *(pytest.param(rest[n::4], id=str(n), marks=pytest.mark.drill) for n in range(4)),
    ]


def check_all(play: Play, seeds: Iterable[int]) -> None:
    """Every world keeps every promise. Raises AssertionError with the seed of the first that does not."""
    for seed in seeds:
        try:
            play(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def fingerprint(play: Play, seeds: int) -> str:
    """One number for what all of these seeds did."""
    logging.disable(logging.CRITICAL)
    return hashlib.sha256("".join(play(seed) for seed in range(seeds)).encode()).hexdigest()


def check_repeatable(module: str, seeds: int) -> None:
    """The same worlds in other processes, whatever their hash seeds, take the same steps."""
    prints = {
        subprocess.run(
            [sys.executable, "-c", _PROGRAM.format(module, seeds)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "12345")
    }
    assert len(prints) == 1
    assert len(prints.pop().strip()) == hashlib.sha256().digest_size * 2
