"""What was broken in a run of durable subscriptions: counts and a few examples of each kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

EXAMPLES = 8
"""So many examples of each kind are kept; the counts always say how many there are."""


class Breach(StrEnum):
    """The ways to break a promise, with the invariants behind them."""

    LOST = "lost"  # G7: published, and in the end neither acked nor a dead letter
    REDELIVERED = "redelivered after an ack"  # G1
    DOUBLE_LEASE = "leased twice at once"  # G2
    BELIEVED = "stale receipts believed"  # G3
    REFUSED = "live receipts refused"  # G3, the other way round
    ATTEMPTS = "wrong attempts"  # G4: a hole, a repetition, or more than max_deliver
    DEAD = "wrong dead letters"  # G4, G7: missing, doubled, too early, for no reason
    PREFETCH = "over the limit"  # G5: prefetch of a stream, max of a pull, max_in_flight
    PRODUCT = "wrong products"  # I7: a transaction that published twice, or though refused, or nothing
    LATE = "delivered after expiry"  # G6
    ORDER = "out of order"  # G8: behind or beside an unsettled earlier message of the key
    PHANTOM = "phantom"  # never published, not matching, or not what was published
    LEDGER = "books that do not add up"  # L1
    STUCK = "stuck"  # V1: not settled in time after the last fault


@dataclass(slots=True)
class Verdict:
    """Counts per breach. `checked` says in words what was looked at, for the report."""

    counts: dict[Breach, int] = field(default_factory=lambda: dict.fromkeys(Breach, 0))
    examples: dict[Breach, list[str]] = field(default_factory=lambda: {breach: [] for breach in Breach})
    checked: str = ""

    def add(self, breach: Breach, example: str) -> None:
        """Count a breach."""
        self.counts[breach] += 1
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
        always = (Breach.LOST, Breach.REDELIVERED, Breach.DOUBLE_LEASE, Breach.ORDER)
        shown = [breach for breach in Breach if breach in always or self.counts[breach]]
        return ", ".join(f"{self.counts[breach]:,} {breach}" for breach in shown)

    def report(self) -> str:
        """Everything, a line each: what was checked, the verdict, and examples of what was broken."""
        lines = [self.checked, self.line()] if self.checked else [self.line()]
        for breach, examples in self.examples.items():
            lines += [f"  {breach}: {example}" for example in examples]
            hidden = self.counts[breach] - len(examples)
            if examples and hidden > 0:
                lines.append(f"  {breach}: … {hidden:,} more")
        return "\n".join(lines)
