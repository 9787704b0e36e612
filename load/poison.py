"""`python -m load.poison`: tests messages that kill their members, and members that are killed together.

The poison: one of ten messages with different keys kills the member that handles it, while the member holds
all ten. Only this message must become a dead letter, and nine must be acked. The fleet: a hundred members
hold ten thousand messages and are killed at once. Another hundred must settle the messages in at most twice
the time that this takes without the kill.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from load import drill
from load.api import Api, RefusedError, UnreachableError
from load.drill import say
from load.server import serving
from load.sse import Event, Stream
from load.verdict import Breach, Verdict
from load.waiting import PATIENCE_S, until
from load.wire import Target

FACTOR = 2.0
FLEET_PATIENCE_S = 5 * PATIENCE_S
MAX_DELIVER = 3
TOLD = (Breach.LOST, Breach.DEAD, Breach.SLOW)


@dataclass(slots=True)
class Member:
    """A member on a stream, which handles its messages in order. At the poison it dies with all it holds."""

    target: Target
    queue: str
    prefetch: int
    hand: list[dict[str, Any]] = field(default_factory=list)
    acked: int = 0
    most: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    stream: Stream | None = None

    async def open(self) -> None:
        path = f"/v1/subscriptions/{self.queue}/consume?prefetch={self.prefetch}"
        request = self.target.request("GET", path, headers={"Accept": "text/event-stream"})
        self.stream = Stream(request, lambda status, head: None, self._take, self.ended.set)
        stream = self.stream
        await self.target.connect(lambda: stream)

    def _take(self, events: list[Event]) -> None:
        self.hand += [msgspec.json.decode(data) for _, data, name in events if name == b"delivery"]
        self.most = max(self.most, len(self.hand))
        self.arrived.set()

    def die(self) -> None:
        """Drop the connection, as when the process dies."""
        if self.stream is not None:
            self.stream.abort()

    async def work(self, api: Api, done: Callable[[int], None]) -> None:
        """Work until it dies. `done` is called with the number of acked messages."""
        while not self.ended.is_set():
            await self.arrived.wait()
            self.arrived.clear()
            while self.hand:
                well = next(
                    (n for n, d in enumerate(self.hand) if d["message"]["data"]["poison"]), len(self.hand)
                )
                if well == 0:
                    self.die()
                    return
                batch = self.hand[: min(well, 10)]
                receipts = [one["receipt"] for one in batch]
                await api.call("POST", f"/v1/subscriptions/{self.queue}/ack", {"receipts": receipts})
                del self.hand[: len(batch)]
                done(len(batch))


async def prepare(api: Api, queue: str, messages: int, poison: int = -1, **settings: Any) -> None:
    """Make a subscription and publish messages to it, each with its own key. `poison`: its number."""
    definition = {"channels": [queue], "start": "earliest", "max_deliver": MAX_DELIVER, **settings}
    await api.call("PUT", f"/v1/subscriptions/{queue}", definition)
    for start in range(0, messages, 1000):
        batch = [
            {"key": f"k{n}", "data": {"n": n, "poison": n == poison}}
            for n in range(start, min(messages, start + 1000))
        ]
        await api.call("POST", f"/v1/channels/{queue}/messages", batch)


async def stats(api: Api, queue: str) -> dict[str, Any]:
    found: dict[str, Any] = (await api.call("GET", f"/v1/subscriptions/{queue}"))["stats"]
    return found


async def poison(api: Api, target: Target, keys: int, at: int, verdict: Verdict) -> None:
    """Run one member after the other. Only the poison may become a dead letter."""
    queue = f"poison{at}"
    await prepare(api, queue, keys, at)
    hands: list[int] = []

    async def over() -> bool:
        counts = await stats(api, queue)
        return bool(counts["acked"] + counts["dead_letters"] == keys and counts["in_flight"] == 0)

    async def live() -> None:
        while True:
            member = Member(target, queue, keys)
            await member.open()
            with suppress(UnreachableError, RefusedError):
                await member.work(api, lambda _: None)
            hands.append(member.most)

    living = asyncio.create_task(live())
    try:
        seconds = await until(over, f"all messages around the poison at {at} are settled", FLEET_PATIENCE_S)
    finally:
        living.cancel()
    counts = await stats(api, queue)
    letters = (await api.call("GET", f"/v1/dead-letters?subscription={queue}"))["dead_letters"]
    dead = [(letter["message"]["data"]["n"], letter["reason"]) for letter in letters]
    attempts = letters[0]["attempts"] if letters else 0
    say(f"{queue}: {counts['acked']} acked, dead {dead} after {attempts} attempts, held at most {hands}")
    say(f"{queue}: settled in {seconds:.1f} s")
    verdict.add(Breach.DEAD, f"{queue}: {dead}", count=dead != [(at, "max_deliver")])
    verdict.add(Breach.LOST, f"{queue}: {counts}", keys - 1 - counts["acked"])


async def settle(api: Api, target: Target, queue: str, messages: int, members: int) -> float:
    """The seconds that a new fleet takes to settle so many messages."""
    fleet = [Member(target, queue, max(1, messages // members)) for _ in range(members)]
    left = messages
    all_done = asyncio.Event()

    def done(count: int) -> None:
        nonlocal left
        left -= count
        if left <= 0:
            all_done.set()

    began = time.monotonic()
    await asyncio.gather(*(member.open() for member in fleet))
    working = [asyncio.create_task(member.work(api, done)) for member in fleet]
    try:
        async with asyncio.timeout(FLEET_PATIENCE_S):
            await all_done.wait()
    except TimeoutError as error:
        raise RuntimeError(f"{queue}: {left} are left; {await stats(api, queue)}") from error
    finally:
        for task in working:
            task.cancel()
        for member in fleet:
            member.die()
    return time.monotonic() - began


async def fleet(
    api: Api, target: Target, messages: int, members: int, factor: float, verdict: Verdict
) -> None:
    """Kill a fleet that holds all messages. Settling them then may take at most `factor` times as long as
    without the kill."""
    await prepare(api, "calm", messages, max_in_flight=messages)
    without = await settle(api, target, "calm", messages, members)
    await prepare(api, "killed", messages, max_in_flight=messages)
    doomed = [Member(target, "killed", messages // members) for _ in range(members)]
    await asyncio.gather(*(member.open() for member in doomed))

    def full() -> bool:
        return sum(len(member.hand) for member in doomed) == messages // members * members

    await until(full, "the fleet holds all messages", FLEET_PATIENCE_S)
    for member in doomed:
        member.die()
    took = await settle(api, target, "killed", messages, members)
    counts = await stats(api, "killed")
    say(
        f"fleet: {messages:,} settled in {without:.2f} s; in {took:.2f} s after {members} members were killed"
    )
    verdict.add(Breach.LOST, f"fleet: {counts}", messages - counts["acked"])
    verdict.add(Breach.DEAD, f"fleet: {counts}", counts["dead_letters"])
    slow = f"fleet: {took / without:.2f} times as long, the limit is {factor:g}"
    verdict.add(Breach.SLOW, slow, count=took > factor * without)


async def trial(options: argparse.Namespace) -> Verdict:
    """Run both tests on a new service."""
    verdict = Verdict(TOLD)
    async with serving() as server:
        api = Api(server.target)
        for at in sorted({0, options.keys // 2, options.keys - 1}):
            await poison(api, server.target, options.keys, at, verdict)
        await fleet(api, server.target, options.messages, options.members, options.factor, verdict)
    return verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once."""
    parser = drill.parser("poison", __doc__, "", "--keys 6 --messages 400 --members 8 --factor inf")
    parser.add_argument("--keys", type=int, default=10, help="messages, with the poison")
    parser.add_argument("--messages", type=int, default=10_000, help="messages that the fleet holds")
    parser.add_argument("--members", type=int, default=100, help="members of the fleet")
    parser.add_argument("--factor", type=float, default=FACTOR, help="the limit, as a multiple")
    options = parser.parse_args(arguments)
    return drill.conclude(drill.played(lambda: asyncio.run(trial(options))))


if __name__ == "__main__":
    sys.exit(main())
