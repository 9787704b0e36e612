"""Messages that kill their members, and fleets that are killed: `python -m load.poison`.

The poison: one of ten messages with keys of their own kills whoever comes to it, with ten in hand. It alone
must become a dead letter, and nine must be acked. The fleet: ten thousand messages are in the hands of a
hundred members that are killed at once; another hundred must settle them in at most twice the time that it
takes without. Exit code 0: both hold, 1: one does not, 2: no verdict.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from load.children import raise_file_limit
from load.groups.api import Api, RefusedError, UnreachableError
from load.server import serving
from load.sse import Event, Stream
from load.wire import Target

FACTOR = 2.0
PATIENCE_S = 300.0
MAX_DELIVER = 3


class NoVerdictError(Exception):
    """Something else than what is asked went wrong."""


@dataclass(slots=True)
class Member:
    """A stream that works on one message after the other, and dies, with all that it holds, at a
    poisonous one."""

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
        await asyncio.get_running_loop().create_connection(lambda: stream, self.target.host, self.target.port)

    def _take(self, events: list[Event]) -> None:
        self.hand += [orjson.loads(data) for _, data, name in events if name == b"delivery"]
        self.most = max(self.most, len(self.hand))
        self.arrived.set()

    def die(self) -> None:
        """As a process does: its connections are gone, and nothing is said."""
        if self.stream is not None:
            self.stream.abort()

    async def work(self, api: Api, done: Callable[[int], None]) -> None:
        """Until it dies. `done` hears how many were acked."""
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
    """A subscription, and messages in it, each with a key of its own; this one is poisonous."""
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


async def until(asked: Callable[[], Any], what: str) -> float:
    """Seconds until it holds."""
    began = time.monotonic()
    while not await asked():
        if time.monotonic() - began > PATIENCE_S:
            raise NoVerdictError(f"no end after {PATIENCE_S:.0f} s: {what}")
        await asyncio.sleep(0.02)
    return time.monotonic() - began


async def poison(api: Api, target: Target, keys: int, at: int) -> bool:
    """One member after the other; whether only the message at fault died."""
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
        seconds = await until(over, f"the poison at {at}")
    finally:
        living.cancel()
    counts = await stats(api, queue)
    letters = (await api.call("GET", f"/v1/dead-letters?subscription={queue}"))["dead_letters"]
    dead = [(letter["message"]["data"]["n"], letter["reason"]) for letter in letters]
    good = dead == [(at, "max_deliver")] and counts["acked"] == keys - 1
    attempts = letters[0]["attempts"] if letters else 0
    print(f"{queue}: {counts['acked']} acked, dead {dead} after {attempts} attempts, hands {hands}")
    print(f"{queue}: over in {seconds:.1f} s")
    return good


async def settle(api: Api, target: Target, queue: str, messages: int, members: int) -> float:
    """Seconds until so many are settled by a new fleet."""
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
        await asyncio.wait_for(all_done.wait(), PATIENCE_S)
    except TimeoutError as error:
        raise NoVerdictError(f"{queue}: {left} are left; {await stats(api, queue)}") from error
    finally:
        for task in working:
            task.cancel()
        for member in fleet:
            member.die()
    return time.monotonic() - began


async def fleet(api: Api, target: Target, messages: int, members: int, factor: float) -> bool:
    """Whether it takes at most so many times as long after all members were killed with all in hand."""
    await prepare(api, "calm", messages, max_in_flight=messages)
    without = await settle(api, target, "calm", messages, members)
    await prepare(api, "killed", messages, max_in_flight=messages)
    doomed = [Member(target, "killed", messages // members) for _ in range(members)]
    await asyncio.gather(*(member.open() for member in doomed))

    async def full() -> bool:
        return sum(len(member.hand) for member in doomed) == messages // members * members

    await until(full, "the hands of the fleet fill")
    for member in doomed:
        member.die()
    took = await settle(api, target, "killed", messages, members)
    counts = await stats(api, "killed")
    good = took <= factor * without and counts["acked"] == messages and counts["dead_letters"] == 0
    print(
        f"fleet: {messages:,} settled in {without:.2f} s; and in {took:.2f} s,"
        f" {took / without:.2f} times as long,"
    )
    print(
        f"fleet: after all {members} members were killed; acked {counts['acked']},"
        f" dead {counts['dead_letters']}"
    )
    return good


async def trial(options: argparse.Namespace) -> int:
    async with serving() as server:
        api = Api(server.target)
        places = sorted({0, options.keys // 2, options.keys - 1})
        good = [await poison(api, server.target, options.keys, at) for at in places]
        good.append(await fleet(api, server.target, options.messages, options.members, options.factor))
    print("verdict: " + ("good" if all(good) else "BROKEN"))
    return 0 if all(good) else 1


def main(arguments: list[str] | None = None) -> int:
    """Run and say the verdict."""
    parser = argparse.ArgumentParser(prog="python -m load.poison", description=__doc__)
    parser.add_argument(
        "--keys", type=int, default=10, help="messages beside which one is poisonous, itself included"
    )
    parser.add_argument("--messages", type=int, default=10_000, help="in the hands of the fleet")
    parser.add_argument("--members", type=int, default=100, help="of the fleet")
    parser.add_argument("--factor", type=float, default=FACTOR, help="so much longer it may take")
    options = parser.parse_args(arguments)
    raise_file_limit()
    try:
        return asyncio.run(trial(options))
    except (NoVerdictError, OSError, RuntimeError, UnreachableError, RefusedError) as error:
        print(f"no verdict: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
