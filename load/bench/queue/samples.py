"""What the bloat benchmark sees every second, and what it makes of it. Nothing here touches a database."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from load.figure import quantile

MOST_S = 60.0
"""The windows before and after the pin are so long at most."""


@dataclass(frozen=True, slots=True)
class Look:
    """The queue's tables at one time, seconds since the run began: bytes of each with its indexes, dead rows
    of all together, and how many messages had been acked."""

    at: float
    sizes: dict[str, int]
    dead: int
    acked: int

    @property
    def bytes(self) -> int:
        """Of all tables together."""
        return sum(self.sizes.values())


@dataclass(slots=True)
class Record:
    """A whole run. `pulls` are claims that gave something: when they were told of, and milliseconds."""

    pulls: list[tuple[float, float]] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)

    def pulls_ms(self, start: float, end: float) -> list[float]:
        """The claims in a time."""
        return [ms for at, ms in self.pulls if start <= at < end]

    def seen(self, start: float, end: float) -> list[Look]:
        """The looks in a time."""
        return [look for look in self.looks if start <= look.at < end]

    def rate(self, start: float, end: float) -> float:
        """Messages acked a second in a time; not a number for less than two looks."""
        looks = self.seen(start, end)
        if len(looks) < 2:
            return math.nan
        return (looks[-1].acked - looks[0].acked) / (looks[-1].at - looks[0].at)

    def series(self) -> list[dict[str, Any]]:
        """Second by second, for a machine to read."""
        by_second: dict[int, list[float]] = {}
        for at, ms in self.pulls:
            by_second.setdefault(int(at), []).append(ms)
        return [
            {
                "at": round(look.at, 2),
                "acked": look.acked,
                "p50_ms": quantile(by_second.get(int(look.at) - 1, []), 0.5),
                "p99_ms": quantile(by_second.get(int(look.at) - 1, []), 0.99),
                "dead": look.dead,
                "bytes": look.sizes,
            }
            for look in self.looks
        ]


@dataclass(frozen=True, slots=True)
class Phases:
    """A record cut by the pin, which held from `begun` to `ended`; the last ack was at `stop`.

    The window before ends where the pin begins, and begins after the warm-up; the one after begins where the
    pin ends, with all that it left behind.
    """

    record: Record
    warm_s: float
    begun: float
    ended: float
    stop: float
    smallest: int

    @property
    def before(self) -> tuple[float, float]:
        """From and to."""
        return max(self.warm_s, self.begun - MOST_S), self.begun

    @property
    def after(self) -> tuple[float, float]:
        """From and to."""
        return self.ended, min(self.stop, self.ended + MOST_S)

    def p99_ms(self) -> tuple[float, float, float]:
        """Of claims: before, during, after."""
        spans = (self.before, (self.begun, self.ended), self.after)
        before, during, after = (quantile(self.record.pulls_ms(*span), 0.99) for span in spans)
        return before, during, after

    def rates(self) -> tuple[float, float]:
        """Acked a second: before, after."""
        return self.record.rate(*self.before), self.record.rate(*self.after)

    def start_bytes(self) -> float:
        """What the tables took in the steady time before the pin."""
        sizes = [look.bytes for look in self.record.seen(*self.before)]
        return max(self.smallest, quantile(sizes, 0.5))

    def peak_bytes(self) -> int:
        """The most they ever took."""
        return max(look.bytes for look in self.record.looks)

    def most_bytes(self, growth: float, mib: float) -> float:
        """What they may take in the end."""
        return min(growth * self.start_bytes(), mib * 2**20)


def pin_now(elapsed: float, acked: int, messages: int, pin_s: float, warm_s: float) -> bool:
    """Whether the pin must begin so that it lies in the middle of the run, at the rate so far."""
    if acked == 0 or elapsed < 2 * warm_s:
        return False
    whole = elapsed * messages / acked
    return elapsed >= (whole - pin_s) / 2


def largest(sizes: dict[str, int], count: int = 3) -> str:
    """The largest tables in words."""
    named = sorted(sizes.items(), key=lambda item: -item[1])[:count]
    return ", ".join(f"{name} {size / 2**20:.2f}" for name, size in named)


def words(record: Record, look: Look) -> str:
    """Where a run stands, from the last ten seconds."""
    span = (look.at - 10, look.at + 1)
    pulls = record.pulls_ms(*span)
    return (
        f"{look.at:.0f} s: {look.acked:,} acked, {record.rate(*span):,.0f}/s, claim p50 "
        f"{quantile(pulls, 0.5):.1f} p99 {quantile(pulls, 0.99):.1f} ms, {look.bytes / 2**20:.1f} MiB "
        f"({largest(look.sizes)}), {look.dead:,} dead"
    )
