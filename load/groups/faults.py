"""When a part of the service is killed while members work, and what each fault hides from the checker."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field

from load.drill import say
from load.faults import PARTS, hit
from load.groups.history import Fault
from load.server import Server

DOWN_S = 6.0
"""The whole service stays away for up to this long: longer than messages live in one subscription."""


@dataclass(slots=True)
class Faults:
    """Hits one part after the other, each once before any is hit again."""

    server: Server
    chance: random.Random
    every_s: float
    found: list[Fault] = field(default_factory=list)

    async def run(self, until_ns: int) -> None:
        """Go on until that time; returns when the last hit part is back. Raises RuntimeError if it is not."""
        bag: list[str] = []
        while True:
            pause = self.chance.uniform(0.6, 1.4) * self.every_s
            if time.monotonic_ns() + int(pause * 1e9) > until_ns:
                return
            await asyncio.sleep(pause)
            bag = bag or self.chance.sample(PARTS, len(PARTS))
            await self._one(bag.pop())

    async def _one(self, name: str) -> None:
        from_ns = time.monotonic_ns()
        await hit(self.server, name, self.chance, self.chance.choice([0, self.chance.uniform(0, DOWN_S)]))
        to_ns = time.monotonic_ns()
        # Redis carries no leases: its loss excuses nothing.
        self.found.append(Fault(name, from_ns, to_ns, hides=name != "redis"))
        say(f"{name} killed with -9, back after {(to_ns - from_ns) / 1e9:.1f} s")
