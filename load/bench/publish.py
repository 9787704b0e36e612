"""Confirmed single publishes over REST, compared with a FastAPI route that stores nothing."""

from __future__ import annotations

import time
from collections import Counter
from itertools import cycle

import msgspec

from load.bench.cost import Cost
from load.bench.peers import plain
from load.drill import say
from load.figure import Figure, UnfitError, versus
from load.server import Server, serving
from load.wire import Response, Target, pump

CONNECTIONS = 64
CHANNELS = [f"bench.publish.{n}" for n in range(8)]
BODY = msgspec.json.encode(
    {"data": {"text": "The quick brown fox jumps over the lazy dog, and is confirmed."}}
)
GOAL = 1.5


async def rate(target: Target, seconds: float, statuses: Counter[int]) -> float:
    """Confirmed publishes per second over all connections. The last answers are waited for."""
    requests = cycle([target.request("POST", f"/v1/channels/{name}/messages", BODY) for name in CHANNELS])
    started = time.perf_counter()
    deadline = started + seconds
    before = statuses[201]

    def source() -> bytes | None:
        return next(requests) if time.perf_counter() < deadline else None

    def sink(answer: Response) -> None:
        statuses[answer.status] += 1

    await pump(target, CONNECTIONS, source, sink)
    return (statuses[201] - before) / (time.perf_counter() - started)


async def stored(server: Server) -> int:
    """The number of messages in the channels of this benchmark, from their heads."""
    total = 0
    for name in CHANNELS:
        answer = await server.get(f"/v1/channels/{name}")
        total += int(msgspec.json.decode(answer.body)["last_seq"]) if answer and answer.status == 200 else 0
    return total


async def run(short: bool) -> list[Figure]:
    """Measure both in turn. Then as many messages must be stored as were confirmed."""
    seconds, rounds = (1.5, 2) if short else (4.0, 4)
    ours: Counter[int] = Counter()
    theirs: Counter[int] = Counter()
    pairs: list[tuple[float, float]] = []
    with plain() as peer:
        async with serving() as server:
            await rate(server.target, 1.0, ours)
            await rate(peer, 1.0, theirs)
            cost, before = Cost(server), ours[201]
            for number in range(rounds):
                with cost:
                    mine = await rate(server.target, seconds, ours)
                pair = (mine, await rate(peer, seconds, theirs))
                pairs.append(pair)
                say(f"publish, round {number + 1}: {pair[0]:,.0f}/s, plain FastAPI {pair[1]:,.0f}/s")
            cost.operations = ours[201] - before
            held = await stored(server)
    if set(ours) != {201} or held != ours[201]:
        raise UnfitError(f"answers {dict(ours)}, {held} stored")
    checked = f"{held:,} confirmed and stored"
    return [versus("publish", "confirmed/s", pairs, GOAL, checked, cost=cost)]
