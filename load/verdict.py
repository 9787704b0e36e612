"""The outcome of a check: counts of what was broken, and a few examples of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

EXAMPLES = 8
"""So many examples of each kind are kept; the counts always say how many there are."""


class Breach(StrEnum):
    """The ways to break the promise, with the invariants of the checker behind them."""

    LOST = "lost"  # I1: confirmed or stored, and not delivered by quiescence
    DOUBLED = "doubled"  # I3, I5: twice on one cursor, or stored twice
    OUT_OF_ORDER = "out of order"  # I2: ids go down on a cursor, or seq goes against id
    PHANTOM = "phantom"  # I8: never published, or not what this reader asked for
    HOLES = "holes"  # I4: seq skips a number, and no gap event said so
    DISAGREE = "disagreeing"  # I6: one id or one seq with two meanings
    DISHONEST = "refused but stored"  # I9: a publish answered with a 4xx was stored all the same


@dataclass(slots=True)
class Verdict:
    """Counts per breach. `checked` says in words what was looked at, for the report."""

    counts: dict[Breach, int] = field(default_factory=lambda: dict.fromkeys(Breach, 0))
    examples: dict[Breach, list[str]] = field(default_factory=lambda: {breach: [] for breach in Breach})
    checked: str = ""

    def add(self, breach: Breach, example: str, count: int = 1) -> None:
        """Count a breach."""
        self.counts[breach] += count
        if len(self.examples[breach]) < EXAMPLES:
            self.examples[breach].append(example)

    @property
    def ok(self) -> bool:
        """Whether nothing at all was broken."""
        return not any(self.counts.values())

    @property
    def exit_code(self) -> int:
        """0 when nothing was broken, else 1."""
        return 0 if self.ok else 1

    def line(self) -> str:
        """The verdict on one line; the rarer breaches appear only when there are some."""
        common = (Breach.LOST, Breach.DOUBLED, Breach.OUT_OF_ORDER)
        parts = [f"{self.counts[breach]:,} {breach}" for breach in common]
        holes = self.counts[Breach.HOLES]
        parts.append(f"{holes:,} holes in seq" if holes else "seq dense")
        rare = (Breach.PHANTOM, Breach.DISAGREE, Breach.DISHONEST)
        parts += [f"{self.counts[breach]:,} {breach}" for breach in rare if self.counts[breach]]
        return ", ".join(parts)

    def report(self) -> str:
        """Everything, a line each: what was checked, the verdict, and examples of what was broken."""
        lines = [self.checked, self.line()] if self.checked else [self.line()]
        for breach, examples in self.examples.items():
            lines += [f"  {breach}: {example}" for example in examples]
            hidden = self.counts[breach] - len(examples)
            if examples and hidden > 0:
                lines.append(f"  {breach}: … {hidden:,} more")
        return "\n".join(lines)
