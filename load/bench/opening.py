"""How long it takes until a new reader of one channel follows it, at a hundred new readers a second."""

from __future__ import annotations

import asyncio
import random
import time

from load.bench import faces
from load.bench.faces import Face
from load.drill import say
from load.figure import Figure, UnfitError, quantile
from load.server import serving
from load.sse import Counter

OPENS_PER_S = 100
CHANNELS = 200
GOAL_MS = 5.0


async def opened(face: Face, channel: str) -> tuple[float, Counter]:
    """Open one reader; returns the milliseconds until `ready`, the connection included."""
    live = asyncio.get_running_loop().create_future()
    began = time.perf_counter()

    def follows(head: bytes) -> None:
        live.set_result((head, time.perf_counter()))

    request = face.subscribe(channel)
    _, counter = await asyncio.get_running_loop().create_connection(
        lambda: Counter(request, face.live_mark, follows, face.mark), face.target.host, face.target.port
    )
    head, at = await asyncio.wait_for(live, 30)
    if head[9:12] != b"200":
        raise UnfitError(f"a subscription was answered {head[:80]!r}")
    return (at - began) * 1000, counter


async def run(short: bool) -> list[Figure]:
    """Open readers at random moments, half of them of channels that already have a reader."""
    seconds, chance = (3 if short else 10), random.Random(1)
    async with serving() as server:
        face = faces.gapless(server.target)
        followed = await faces.follow(face, [f"bench.opening.{n}" for n in range(CHANNELS // 2)])
        await asyncio.sleep(1)  # Those came in a crowd, and the first new readers would share its pace.
        opening = []
        for _ in range(seconds * OPENS_PER_S):
            channel = f"bench.opening.{chance.randrange(CHANNELS)}"
            opening.append(asyncio.create_task(opened(face, channel)))
            await asyncio.sleep(chance.expovariate(OPENS_PER_S))
        results = await asyncio.gather(*opening)
        await faces.hang_up(followed + [counter for _, counter in results])
    took = [milliseconds for milliseconds, _ in results]
    p50, p99 = quantile(took, 0.5), quantile(took, 0.99)
    say(f"opening: p50 {p50:.2f} ms, p99 {p99:.2f} ms, at {OPENS_PER_S} a second")
    checked = f"{len(took):,} readers were ready; p99 {p99:.1f} ms"
    return [Figure("opening a reader, p50", p50, None, "ms", p50, GOAL_MS, False, checked)]
