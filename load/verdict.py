"""Breaches and verdicts of all drills: how they are printed, and their exit codes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

EXAMPLES = 8
"""The most examples that are kept of each kind. The counts are complete."""

CLEAN, BROKEN, NO_VERDICT = 0, 1, 2
"""The exit codes of every drill: no breach, a breach, and no verdict."""


class NoVerdictError(Exception):
    """The run says nothing about the service; the text says why, for a person."""


class Breach(StrEnum):
    """The kinds of breaches of a guarantee. Each drill looks for some; all use the same words."""

    # Of a log and its readers
    LOST = "lost"  # I1, G7: confirmed or stored, and not in the log or not delivered in the end
    DOUBLED = "doubled"  # I3, I5: delivered twice to one reader, or stored twice
    OUT_OF_ORDER = "out of order"  # I2, G8: ids, a publisher's order, or that of a key, not kept
    HOLES = "holes in seq"  # I4: seq skips a number, and no gap event said so
    PHANTOM = "phantom"  # I8: never published, not what this reader asked for, or listed and not there
    DISAGREE = "disagreeing"  # I6: one id, one seq or one message with two meanings
    DISHONEST = "refused but stored"  # I9: answered with a 4xx, or rolled back, and stored
    EARLY = "before their targets"  # a change stored, or given to a reader, before what it changes
    FOLDED = "folded wrongly"  # what a reader makes of the changes it got is not what they say
    VIEW = "views wrong"  # nor is what the service shows with view=latest
    OUTDATED = "outdated versions accepted"  # a change was stored although its target had another version
    UNTOLD = "losses untold"  # lost with an old primary, and a reader that had it got no gap
    REGRESSED = "regressions"  # a number that may only rise went back

    # Of durable subscriptions
    REDELIVERED = "redelivered after an ack"  # G1
    DOUBLE_LEASE = "leased twice at once"  # G2
    BELIEVED = "stale receipts believed"  # G3: a receipt of an ended lease was accepted
    REFUSED = "live receipts refused"  # G3, the opposite
    ATTEMPTS = "wrong attempts"  # G4: a hole, a repetition, or more than max_deliver
    DEAD = "wrong dead letters"  # G4, G7: missing, doubled, too early, without a reason
    PREFETCH = "over the limit"  # G5: prefetch of a stream, max of a pull, max_in_flight
    PRODUCT = "wrong products"  # I7: a transaction published twice, or nothing, or was refused and published
    LATE = "delivered after expiry"  # G6
    LEDGER = "books that do not add up"  # L1: counts, lists, tables and history disagree
    STUCK = "stuck"  # V1: neither settled nor dead in time

    # Of dead letters on their way
    ROUTELESS = "without a route"  # died, and was not published to where its route leads
    ASTRAY = "astray"  # went elsewhere, was changed, or has a wrong reason
    JOURNEY = "wrong journeys"  # the journey in its header differs from the real one

    # Of a service and of those who use it
    DOWN = "starts refused"  # the service did not start
    MISSING = "missing"  # there, and not on a list of those who are there
    SLOW = "too slow"  # an answer, a delivery or a run took longer than allowed
    SHORT = "goals missed"  # a measured figure misses its goal
    FAILED = "parts failed"  # a part of the run ended, was refused, or got a wrong answer
    MISSED = "controls missed"  # a planted error was not found, or not as the right kind
    STALE = "stale reasons"  # what is said to fail passes, or is not there
    HARMED = "pages that did harm"  # what a foreign page did or read, or an allowed one could not


USUAL = (Breach.LOST, Breach.DOUBLED, Breach.OUT_OF_ORDER)

NONE = {Breach.HOLES: "seq dense"}
"""Texts for breaches that did not occur, in place of their count."""


@dataclass(slots=True)
class Verdict:
    """The breaches of a run: counts and examples. The line names the kinds in `told` even with a count of 0.
    `checked` says what was checked."""

    told: tuple[Breach, ...] = USUAL
    checked: str = ""
    counts: Counter[Breach] = field(default_factory=Counter)
    examples: dict[Breach, list[str]] = field(default_factory=dict)

    def add(self, breach: Breach, example: str, count: int = 1) -> None:
        """Count `count` breaches of a kind. A count of 0 or less is ignored."""
        if count <= 0:
            return
        self.counts[breach] += count
        kept = self.examples.setdefault(breach, [])
        if len(kept) < EXAMPLES:
            kept.append(example)

    def include(self, other: Verdict, where: str = "") -> None:
        """Add the breaches of another verdict. `where` is put before its examples."""
        self.counts.update(other.counts)
        for breach, examples in other.examples.items():
            kept = self.examples.setdefault(breach, [])
            kept += [f"{where}: {text}" if where else text for text in examples[: EXAMPLES - len(kept)]]

    @property
    def ok(self) -> bool:
        """Whether there is no breach."""
        return not any(self.counts.values())

    @property
    def exit_code(self) -> int:
        """The exit code of a drill with this verdict."""
        return CLEAN if self.ok else BROKEN

    def line(self) -> str:
        """The verdict on one line: first the kinds in `told`, then all others that occurred."""
        shown = [
            *self.told,
            *(breach for breach in Breach if self.counts[breach] and breach not in self.told),
        ]
        return f"{'clean' if self.ok else 'BROKEN'}: {', '.join(map(self._count, shown))}"

    def _count(self, breach: Breach) -> str:
        count = self.counts[breach]
        return NONE[breach] if breach in NONE and not count else f"{count:,} {breach}"

    def report(self) -> str:
        """The whole report: what was checked, the verdict, and examples of breaches, a line each."""
        lines = [self.checked, self.line()] if self.checked else [self.line()]
        for breach, examples in self.examples.items():
            lines += [f"  {breach}: {example}" for example in examples]
            hidden = self.counts[breach] - len(examples)
            if hidden > 0:
                lines.append(f"  {breach}: … {hidden:,} more")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The counts and examples as JSON, to send them to another process."""
        counts = {breach.value: count for breach, count in self.counts.items()}
        return {"counts": counts, "examples": {breach.value: kept for breach, kept in self.examples.items()}}

    @staticmethod
    def from_json(state: dict[str, Any]) -> Verdict:
        """The verdict from its `to_json`."""
        counts = Counter({Breach(name): count for name, count in state["counts"].items()})
        return Verdict(counts=counts, examples={Breach(k): v for k, v in state["examples"].items()})
