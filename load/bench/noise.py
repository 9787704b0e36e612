"""How much of the machine other programs used during a measurement, to recognize a disturbed one."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path


def _machine() -> tuple[float, float]:
    """Processor seconds of all cores since boot: the busy ones, and all."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    tick = os.sysconf("SC_CLK_TCK")
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / tick, sum(ticks) / tick


def _own() -> float:
    """Processor seconds of this process and of all its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@dataclass(slots=True)
class Noise:
    """Make it before a measurement, and read `share` after it, when all its children have ended."""

    machine: tuple[float, float] = field(default_factory=_machine)
    own: float = field(default_factory=_own)

    def share(self) -> float:
        """The share of the machine, 0 to 1, that other programs used."""
        busy, total = _machine()
        passed = total - self.machine[1]
        foreign = busy - self.machine[0] - (_own() - self.own)
        return max(0.0, foreign / passed) if passed else 0.0
