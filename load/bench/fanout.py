"""Deliveries per second to many readers of one channel, published without a pause, compared with Nchan."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec

from load.bench import faces
from load.bench.cost import Cost
from load.bench.faces import Face
from load.bench.peers import nchan
from load.drill import say
from load.figure import Figure, UnfitError, versus
from load.server import serving
from load.waiting import PATIENCE_S
from load.wire import Response, pump

CONNECTIONS = 64
CROWDS = (500, 2000)
GOAL = 5.0
DRAIN_PATIENCE = 2 * PATIENCE_S
BODY = msgspec.json.encode(
    {"data": {"text": "The quick brown fox jumps over the lazy dog, in front of everyone."}}
)


@dataclass(frozen=True, slots=True)
class Burst:
    """One measurement: every reader got all `published` messages within `seconds`."""

    published: int
    readers: int
    seconds: float

    @property
    def rate(self) -> float:
        """Deliveries per second."""
        return self.published * self.readers / self.seconds


async def burst(face: Face, channel: str, readers: int, seconds: float) -> Burst:
    """Publish for so many seconds and wait for the last delivery. Raises UnfitError if a message was lost."""
    crowd = await faces.follow(face, [channel] * readers)
    request = face.publish(channel, BODY)
    published = refused = 0
    started = time.perf_counter()
    deadline = started + seconds

    def sink(answer: Response) -> None:
        nonlocal published, refused
        if answer.status in face.accepted:
            published += 1
        else:
            refused += 1

    await pump(face.target, CONNECTIONS, lambda: request if time.perf_counter() < deadline else None, sink)
    ended = await faces.all_delivered(
        lambda: all(reader.count >= published for reader in crowd), DRAIN_PATIENCE
    )
    counts = {reader.count for reader in crowd}
    await faces.hang_up(crowd)
    if counts != {published} or refused or not published:
        raise UnfitError(
            f"{face.name}: {published} published, {refused} refused, readers got {sorted(counts)[:5]}"
        )
    return Burst(published, readers, ended - started)


async def run(short: bool) -> list[Figure]:
    """Measure both servers in turn, with each number of readers."""
    seconds, rounds = (2.0, 1) if short else (5.0, 3)
    figures: list[Figure] = []
    with nchan() as peer:
        async with serving() as server:
            ours, theirs = faces.gapless(server.target), faces.nchan(peer)
            for readers in CROWDS:
                pairs: list[tuple[float, float]] = []
                cost = Cost(server)
                for number in range(rounds):
                    channel = f"bench.fanout.{readers}.{number}"
                    with cost:
                        mine = await burst(ours, channel, readers, seconds)
                    cost.operations += mine.published * readers
                    peers = await burst(theirs, channel, readers, seconds)
                    pairs.append((mine.rate, peers.rate))
                    say(
                        f"fan-out to {readers:,}, round {number + 1}: {mine.rate:,.0f}/s of "
                        f"{mine.published / mine.seconds:,.0f} publishes/s, Nchan {peers.rate:,.0f}/s of "
                        f"{peers.published / peers.seconds:,.0f} publishes/s"
                    )
                checked = f"each of {readers:,} readers counted every published message, on both"
                name = f"fan-out {readers:,}"
                figures.append(versus(name, "deliveries/s", pairs, GOAL, checked, cost=cost))
    return figures
