"""The time fuzzer: its seed makes the same texts again, it finds what is slow, and its short form passes."""

from __future__ import annotations

import asyncio
import random

import pytest

from load import timefuzz
from load.timefuzz import FACES, JSON_PIECES, LIMIT_S, TEXT_PIECES, Findings, run, text_of
from load.verdict import Breach
from tests.patience import PATIENCE_S


def test_a_seed_makes_the_same_texts_again() -> None:
    for pieces in (JSON_PIECES, TEXT_PIECES):
        made = [
            [text_of(chance, pieces, 5_000) for _ in range(50)] for chance in map(random.Random, (7, 7, 8))
        ]
        assert made[0] == made[1] != made[2]
        assert max(map(len, made[0])) < 20_000


def test_what_takes_too_long_is_told_by_its_case() -> None:
    found = Findings()
    found.add("publish", LIMIT_S / 2, "seed 1, text 0")
    found.add("publish", LIMIT_S * 2, "seed 1, text 1")
    assert found.verdict.examples == {Breach.SLOW: ["publish: 10.0 s (seed 1, text 1)"]}
    assert found.slowest == {"publish": LIMIT_S * 2}


@pytest.mark.drill
@pytest.mark.realtime("no answer may take more than five seconds")
def test_every_face_is_asked_in_the_short_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timefuzz, "LIMIT_S", LIMIT_S * PATIENCE_S / 60)  # a slow machine has more
    found = asyncio.run(run(seconds=1.0, seed=1, size=100_000))
    assert found.slowest.keys() == {face.name for face in FACES}
    assert found.texts >= len(FACES)
    assert found.verdict.ok, found.verdict.report()
