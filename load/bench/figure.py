"""What a benchmark reports: one figure, what it is compared with, and whether that is enough."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Word(StrEnum):
    """PASS: the goal is met. SHORT: it is not."""

    PASS = "PASS"
    SHORT = "SHORT"


@dataclass(frozen=True, slots=True)
class Figure:
    """`score` is held against `goal`: at least that much when `more_is_better`, else at most.

    `ours` and `peer` are the measured values behind it in `unit`; `rounds` the scores of single rounds;
    `checked` says in words what was verified, and a measurement that failed it never becomes a figure.
    """

    name: str
    ours: float
    peer: float | None
    unit: str
    score: float
    goal: float
    more_is_better: bool
    checked: str
    rounds: tuple[float, ...] = ()

    @property
    def word(self) -> Word:
        """Whether the goal is met."""
        met = self.score >= self.goal if self.more_is_better else self.score <= self.goal
        return Word.PASS if met else Word.SHORT


def versus(
    name: str, unit: str, pairs: Sequence[tuple[float, float]], goal: float, checked: str, more: bool = True
) -> Figure:
    """A figure from rounds of (ours, peer) taken in turn: the median of the rounds' ratios."""
    ratios = tuple(ours / peer for ours, peer in pairs)
    ours = statistics.median(pair[0] for pair in pairs)
    peer = statistics.median(pair[1] for pair in pairs)
    return Figure(name, ours, peer, unit, statistics.median(ratios), goal, more, checked, ratios)


class UnfitError(Exception):
    """The measurement cannot be believed: something was not stored or not delivered."""
