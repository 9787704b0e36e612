"""How long a new reader of a channel takes until it follows, at a hundred new readers a second."""

from __future__ import annotations

import asyncio
import random
import time

from load.bench import faces
from load.bench.faces import Face
from load.drill import say
from load.figure import Figure, quantile
from load.server import serving
from load.sse import Counter

OPENS_PER_S = 100
CHANNELS = 200
GOAL_MS = 5.0


async def opened(face: Face, channel: str) -> tuple[float, Counter]:
    """Open one reader. Returns the milliseconds until `ready`, with those of connecting."""
    began = time.perf_counter()
    counter, at = await faces.open_reader(face, channel)
    return (at - began) * 1000, counter


async def measure(face: Face, seconds: float, chance: random.Random) -> list[float]:
    """Open readers at random moments, half of them of channels that already have a reader. Returns the
    milliseconds that each took."""
    followed = await faces.follow(face, [f"bench.opening.{n}" for n in range(CHANNELS // 2)])
    await asyncio.sleep(1)  # The work for these many readers must not slow the first new ones.
    opening = []
    for _ in range(int(seconds * OPENS_PER_S)):
        channel = f"bench.opening.{chance.randrange(CHANNELS)}"
        opening.append(asyncio.create_task(opened(face, channel)))
        await asyncio.sleep(chance.expovariate(OPENS_PER_S))
    results = await asyncio.gather(*opening)
    await faces.hang_up(followed + [counter for _, counter in results])
    return [milliseconds for milliseconds, _ in results]


async def run(short: bool) -> list[Figure]:
    """Measure once."""
    async with serving() as server:
        took = await measure(faces.gapless(server.target), 3 if short else 10, random.Random(1))
    p50, p99 = quantile(took, 0.5), quantile(took, 0.99)
    say(f"opening: p50 {p50:.2f} ms, p99 {p99:.2f} ms, at {OPENS_PER_S} a second")
    checked = f"{len(took):,} readers were ready; p99 {p99:.1f} ms"
    return [Figure("opening a reader, p50", p50, None, "ms", p50, GOAL_MS, False, checked)]
