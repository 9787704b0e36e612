"""The speed of a round, from the times of its dead letters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from load.restart.world import Letter


@dataclass(slots=True)
class Figures:
    """Seconds, and dead letters a second. `ready_at` in seconds since 1970."""

    outage_s: float = 0.0
    ready_s: float = 0.0
    ready_at: float = 0.0
    repeated: int = 0
    deaths: list[float] = field(default_factory=list)

    def add(self, letters: list[Letter]) -> None:
        """Add the times of dead letters."""
        self.deaths += [letter.died_at for letter in letters]

    def line(self) -> str:
        """All figures in one line."""
        after = [died_at for died_at in self.deaths if died_at >= self.ready_at - self.ready_s]
        if not after:
            return "nothing died after the start"
        took = max(after) - min(after)
        peak = max(Counter(int(died_at) for died_at in after).values())
        return (
            f"away for {self.outage_s:.1f} s, ready after {self.ready_s:.1f} s with {self.repeated} publishes"
            f" repeated; {len(self.deaths):,} dead letters, {len(after):,} of them after the start in"
            f" {took:.1f} s: {len(after) / max(took, 1):,.0f} a second, {peak:,} in the best"
        )
