"""The judge of crashes passes what is whole and finds what is not; and a few rounds, for real."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from load.children import CHECKOUT
from load.crashes.books import Books, Stored, Verdict, check

CLEAN = [Stored(10 + n, n, n) for n in range(1, 9)]


def judged(stored: list[Stored]) -> Verdict:
    books, verdict = Books({n: 10 + n for n in range(1, 8)}, set(range(1, 10))), Verdict()
    check(books, stored, verdict)
    return verdict


def test_a_clean_log_passes() -> None:
    assert judged(CLEAN).ok
    assert judged(CLEAN[:7]).ok, "what was never confirmed may be there or not"


@pytest.mark.parametrize(
    ("word", "spoil"),
    [
        ("lost", lambda log: log.pop(3)),
        ("lost", lambda log: log.__setitem__(2, Stored(99, 3, 3))),
        ("doubled", lambda log: log.append(Stored(50, 9, 1))),
        ("phantom", lambda log: log.append(Stored(50, 9, 77))),
        ("holes", lambda log: log.append(Stored(50, 10, 9))),
        ("out of order", lambda log: log.append(Stored(5, 9, 9))),
    ],
)
def test_each_mistake_is_found(word: str, spoil: Callable[[list[Stored]], object]) -> None:
    log = list(CLEAN)
    spoil(log)
    assert any(text.startswith(word) for text in judged(log).broken)


def test_a_start_that_was_refused_counts() -> None:
    assert not Verdict(refused=["round 1: lock file exists"]).ok


@pytest.mark.slow
def test_it_starts_at_once_after_everything_was_killed() -> None:
    command = [sys.executable, "-m", "load.crashes", "--rounds", "3", "--seconds", "0.5", "--seed", "8"]
    answer = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "0 starts refused, 0 promises broken" in answer.stdout
