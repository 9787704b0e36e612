"""Confirmed publishes in flight over one WebSocket of the Python client, against a route that stores nothing.

The peer is that of `publish`, with its 64 HTTP connections. The client is part of what is measured.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Final

from gapless import AsyncClient, GaplessError

from load.bench import publish
from load.bench.peers import plain
from load.bench.publish import CHANNELS, stored
from load.drill import say
from load.figure import Figure, UnfitError, versus
from load.server import serving

IN_FLIGHT: Final = (64, 256)
NO_GOAL: Final = float("inf")
DATA: Final = {"text": "The quick brown fox jumps over the lazy dog, and is confirmed."}


async def rate(client: AsyncClient, in_flight: int, seconds: float, outcomes: Counter[str]) -> float:
    """Confirmed publishes per second; every reply is waited for."""
    async with client.connect(max_in_flight=in_flight) as connection:
        started = time.perf_counter()
        deadline = started + seconds
        before = outcomes["confirmed"]

        async def keep_publishing(channel: str) -> None:
            while time.perf_counter() < deadline:
                try:
                    await connection.publish(channel, DATA)
                except GaplessError as error:
                    outcomes[error.code] += 1
                else:
                    outcomes["confirmed"] += 1

        await asyncio.gather(*(keep_publishing(CHANNELS[n % len(CHANNELS)]) for n in range(in_flight)))
        return (outcomes["confirmed"] - before) / (time.perf_counter() - started)


async def run(short: bool) -> list[Figure]:
    """Rounds in turn; then as many messages must be stored as were confirmed."""
    seconds, rounds = (1.5, 2) if short else (4.0, 4)
    outcomes: Counter[str] = Counter()
    theirs: Counter[int] = Counter()
    pairs: dict[int, list[tuple[float, float]]] = {in_flight: [] for in_flight in IN_FLIGHT}
    with plain() as peer:
        async with serving() as server, AsyncClient(server.url) as client:
            await rate(client, IN_FLIGHT[0], 1.0, outcomes)
            await publish.rate(peer, 1.0, theirs)
            for number in range(rounds):
                for in_flight, found in pairs.items():
                    ours = await rate(client, in_flight, seconds, outcomes)
                    found.append((ours, await publish.rate(peer, seconds, theirs)))
                    say(
                        f"websocket, {in_flight} in flight, round {number + 1}: "
                        f"{ours:,.0f}/s, plain FastAPI {found[-1][1]:,.0f}/s"
                    )
            held = await stored(server)
    if set(outcomes) != {"confirmed"} or held != outcomes["confirmed"]:
        raise UnfitError(f"outcomes {dict(outcomes)}, {held} stored")
    checked = f"{held:,} confirmed and stored"
    return [versus(f"websocket {n}", "confirmed/s", found, NO_GOAL, checked) for n, found in pairs.items()]
