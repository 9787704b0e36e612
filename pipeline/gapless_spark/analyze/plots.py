"""Collects the plots of one page by name. Chapters add them, and the page writes them as JSON."""

from __future__ import annotations

from gapless_spark.analyze import bins, figures
from gapless_spark.analyze.findings import Spread
from gapless_spark.analyze.markup import card, chart, counted, numbers, shown


class Plots:
    """`figures` has every plot that a chapter has put into its text."""

    def __init__(self) -> None:
        self.figures: dict[str, figures.Figure] = {}

    def put(self, name: str, title: str, figure: figures.Figure) -> str:
        """Add a plot. Returns the markup of its place in the text."""
        self.figures[name] = figure
        return chart(name, title, figure["height"])

    def durations(
        self, name: str, title: str, count: str, found: Spread, note: str = "", end: float | None = None
    ) -> str:
        """A card with a histogram of seconds and its numbers; `count` names the heights."""
        return self._spread(name, title, "time", count, found, bins.span_labels(found.edges, end), note)

    def counts(self, name: str, title: str, axis: str, count: str, found: Spread, note: str = "") -> str:
        """A card with a histogram of whole numbers and its numbers."""
        return self._spread(name, title, axis, count, found, bins.count_labels(found.edges), note)

    def _spread(
        self, name: str, title: str, axis: str, count: str, found: Spread, labels: list[str], note: str
    ) -> str:
        tone = {"replies": 1, "words": 2}.get(name, 3)
        rows = [{"bin": label, "n": n} for label, n in zip(labels, found.bins, strict=True)]
        return card(
            title,
            f"{note} Bins widen from left to right.".strip(),
            self.put(name, title, figures.histogram(labels, found.bins, axis, count, tone)),
            numbers(rows, [shown(axis, "bin", str), counted(count, "n", bar=True)]),
        )
