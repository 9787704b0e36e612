"""What goes wrong in a world of consumers, and how long what may take there."""

from __future__ import annotations

import random
from dataclasses import dataclass

NAMESPACE = "default"
ACK_WAIT_S = 3.0
BACK_S = 1.0
"""What nobody holds is free again within so much, when nothing fails."""
AUDIT_S = 0.1
"""How often it is looked for what nobody holds."""
IDLE_S = 5.0
IDLE_CLAIMS = 3
"""Claims a second and a group may make with nothing to do."""


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong in one seed, as probabilities and seconds; drawn anew for each."""

    lose: float
    late_s: float
    fail: float
    slow_s: float
    hold_s: float
    skew_s: float
    kills: int
    stops: int

    @classmethod
    def draw(cls, chance: random.Random) -> Faults:
        """A fifth of each kind is missing."""

        def some(most: float) -> float:
            return 0.0 if chance.random() < 0.2 else chance.random() * most

        return cls(
            lose=1.0 if chance.random() < 0.2 else some(0.8),
            late_s=some(0.3),
            fail=some(0.2),
            slow_s=some(0.08),
            hold_s=some(0.5),
            skew_s=(chance.random() - 0.5) * some(0.4),
            kills=chance.choice((0, 0, 1)),
            stops=chance.choice((0, 0, 1)),
        )
