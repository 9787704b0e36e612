"""Memory of the service per idle reader."""

from __future__ import annotations

import asyncio

from load.bench import faces
from load.children import resident_bytes
from load.drill import say
from load.figure import Figure, UnfitError
from load.server import Server, serving

READERS = 5000
CHANNELS = 100
GOAL_KIB = 15.0


async def settled_bytes(server: Server) -> int:
    """The memory of the service's Python processes, once it is stable for a second, or after 20 s."""
    last = -1
    for _ in range(20):
        await asyncio.sleep(1)
        now = sum(resident_bytes(pid) for pid in server.own())
        if abs(now - last) < 200_000:
            return now
        last = now
    return last


async def run(short: bool) -> list[Figure]:
    """Open readers of a hundred channels. The first of each is not counted, since it also makes the feed."""
    readers = 1000 if short else READERS
    async with serving() as server:
        face = faces.gapless(server.target)
        first = await faces.follow(face, [f"bench.memory.{n}" for n in range(CHANNELS)])
        before = await settled_bytes(server)
        crowd = await faces.follow(face, [f"bench.memory.{n % CHANNELS}" for n in range(readers)])
        after = await settled_bytes(server)
        lost = sum(reader.lost for reader in crowd)
        await faces.hang_up(first + crowd)
    if lost:
        raise UnfitError(f"{lost} idle readers were disconnected")
    each = (after - before) / readers / 1024
    say(f"memory: {before / 2**20:.1f} MiB, with {readers:,} more readers {after / 2**20:.1f} MiB")
    checked = f"{readers:,} idle readers of {CHANNELS} channels, all connected at the end"
    return [Figure("memory per reader", each, None, "KiB", each, GOAL_KIB, False, checked)]
