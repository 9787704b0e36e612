"""Plans the readers of a chat: a seeded mix of readers of one channel, of several, and of patterns."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from load.chat.follower import LATEST
from load.patterns import matches_any

PATTERNS = ("chat.>", "chat.*", ">", "*.*")
MOST_IN_A_SET = 40


@dataclass(frozen=True, slots=True)
class Plan:
    """One planned reader: its channels, its start, the delay in seconds before it connects, and its face."""

    name: str
    patterns: tuple[str, ...]
    start: int
    delay: float
    over_websocket: bool


def plan(chance: random.Random, sizes: Counter[str], readers: int) -> list[Plan]:
    """Six in ten follow one channel, three a set, one a pattern; one in ten starts at the end of the log.

    Busy channels are followed more often, by the square root of their size; one reader in ten comes late.
    Three in ten read over WebSocket, the others over SSE.
    """
    names = sorted(sizes)
    weights = [sizes[name] ** 0.5 for name in names]
    plans = []
    for number in range(readers):
        kind = ("one", "one", "set", "one", "pattern", "one", "set", "one", "one", "set")[number % 10]
        if kind == "one":
            patterns = tuple(chance.choices(names, weights))
        elif kind == "set":
            patterns = _some(chance, names, weights)
        else:
            patterns = (chance.choice(PATTERNS),)
        start = LATEST if chance.random() < 0.1 else 0
        delay = chance.uniform(0.5, 8) if chance.random() < 0.1 else 0.0
        over_websocket = chance.random() < 0.3
        face = "over WebSocket" if over_websocket else "over SSE"
        plans.append(Plan(f"{kind} {number} {face}", patterns, start, delay, over_websocket))
    return plans


def _some(chance: random.Random, names: list[str], weights: list[float]) -> tuple[str, ...]:
    wanted = chance.randint(2, MOST_IN_A_SET)
    return tuple(sorted(set(chance.choices(names, weights, k=wanted))))


def owed_at_least(plans: list[Plan], sizes: Counter[str]) -> int:
    """How many deliveries the readers that begin at the start must get together."""
    whole = [p for p in plans if p.start == 0]
    return sum(size for p in whole for name, size in sizes.items() if matches_any(p.patterns, name))
