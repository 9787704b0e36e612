"""What was broken in a round: counts, and a few examples of each kind."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

EXAMPLES = 5
"""So many examples of each kind are kept; the counts always say how many there are."""


class Breach(StrEnum):
    """The ways in which a message does not end where it should."""

    LOST = "lost"  # published, and it is nowhere at the end, or not on its way either
    DOUBLED = "doubled"  # two dead letters of one message and subscription, two copies, or twice at an end
    STUCK = "stuck"  # it should have died and did not
    ROUTELESS = "without a route"  # died, and was not published to where its route leads
    ASTRAY = "astray"  # went somewhere else, or as something else, or for another reason
    JOURNEY = "wrong journeys"  # what it says it went through is not what it went through
    BOOKS = "books that do not add up"  # counts, rows left behind, the API against the database


@dataclass(slots=True)
class Verdict:
    """Everything that was broken."""

    counts: Counter[Breach] = field(default_factory=Counter)
    examples: dict[Breach, list[str]] = field(default_factory=dict)

    def add(self, breach: Breach, example: str) -> None:
        """Count a breach."""
        self.counts[breach] += 1
        kept = self.examples.setdefault(breach, [])
        if len(kept) < EXAMPLES:
            kept.append(example)

    def include(self, other: Verdict) -> None:
        """Count what was broken elsewhere too."""
        self.counts += other.counts
        for breach, examples in other.examples.items():
            kept = self.examples.setdefault(breach, [])
            kept += examples[: EXAMPLES - len(kept)]

    @property
    def ok(self) -> bool:
        """Whether nothing at all was broken."""
        return not any(self.counts.values())

    def line(self) -> str:
        """On one line; the rarer breaches appear only when there are some."""
        always = (Breach.LOST, Breach.DOUBLED)
        shown = [breach for breach in Breach if breach in always or self.counts[breach]]
        return ", ".join(f"{self.counts[breach]:,} {breach}" for breach in shown)

    def report(self) -> str:
        """The line, and examples below it."""
        lines = [self.line()]
        for breach, examples in self.examples.items():
            lines += [f"  {breach}: {example}" for example in examples]
        return "\n".join(lines)
