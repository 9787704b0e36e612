"""The report of a benchmark: figures, the value that each is compared with, and whether it meets the goal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.console import Console
from rich.table import Table

from load.verdict import Breach, Verdict


class Word(StrEnum):
    """PASS: the goal is met. SHORT: it is not."""

    PASS = "PASS"
    SHORT = "SHORT"


@dataclass(frozen=True, slots=True)
class Figure:
    """A score and its goal: at least the goal if `more_is_better`, else at most.

    `ours` and `peer` are the measured values of the score, in `unit`. `rounds` are the scores of the rounds.
    `checked` says what was verified; a measurement that fails its check gives no figure. `cost` says what
    10,000 operations take of the CPU.
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
    cost: str = ""

    @property
    def word(self) -> Word:
        """Whether the goal is met."""
        met = self.score >= self.goal if self.more_is_better else self.score <= self.goal
        return Word.PASS if met else Word.SHORT


def versus(
    name: str,
    unit: str,
    pairs: Sequence[tuple[float, float]],
    goal: float,
    checked: str,
    more: bool = True,
    cost: object = "",
) -> Figure:
    """A figure from rounds of (ours, peer): the median of the rounds' ratios."""
    ratios = tuple(ours / peer for ours, peer in pairs)
    ours = statistics.median(pair[0] for pair in pairs)
    peer = statistics.median(pair[1] for pair in pairs)
    return Figure(name, ours, peer, unit, statistics.median(ratios), goal, more, checked, ratios, str(cost))


class UnfitError(Exception):
    """The measurement is invalid: a message was not stored or not delivered."""


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed; NaN without values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def verdict_on(figures: Sequence[Figure]) -> Verdict:
    """The verdict on figures. A missed goal is a breach; a figure without a goal is not."""
    verdict = Verdict((Breach.SHORT,), f"{len(figures)} figures")
    for figure in figures:
        said = f"{figure.name}: {figure.score:.2f}, the goal is {figure.goal:g}"
        short = figure.word is Word.SHORT and figure.goal != float("inf")
        verdict.add(Breach.SHORT, said, count=short)
    return verdict


def show(figures: Sequence[Figure]) -> None:
    """Print the figures as a table."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=180)  # a file has no width of its own
    console.print(table(figures))


def table(figures: Sequence[Figure]) -> Table:
    """The table, with a row for each figure."""
    heads = ("what", "Gapless", "compared with", "score", "goal", "", "CPU for 10,000", "checked")
    grid = Table(*heads, title="Gapless compared")
    for figure in figures:
        sign = "≥" if figure.more_is_better else "≤"
        goal = "" if figure.goal == float("inf") else f"{sign} {figure.goal:g}"
        peer = "" if figure.peer is None else f"{_short(figure.peer)} {figure.unit}"
        colour = "green" if figure.word is Word.PASS else "red"
        word = f"[{colour}]{figure.word}[/]" if goal else ""
        score = f"{figure.score:.2f}" if figure.peer is not None else f"{figure.score:.1f} {figure.unit}"
        ours = f"{_short(figure.ours)} {figure.unit}"
        grid.add_row(figure.name, ours, peer, score, goal, word, figure.cost, figure.checked)
    return grid


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
