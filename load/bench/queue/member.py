"""Members of one subscription, as a client's process runs them: pull a hundred, ack them in one call.

`python -m load.bench.queue.member HOST PORT SUBSCRIPTION MEMBERS`. Each member is a connection of its own
with one request at a time. Every twentieth of a second the process says what it has done since.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from typing import Any

import msgspec
import uvloop

from load.bench.queue.concurrent_start import ConcurrentStart
from load.wire import Connection, Response, Target

BATCH = 100
WAIT_S = 5
TICK_S = 0.05


class Share:
    """What one process of members has done: counts, the sum of the ids acked, and how long pulls took."""

    def __init__(self, start: ConcurrentStart) -> None:
        self._start = start
        self.acked = 0
        self.batches = 0
        self.id_sum = 0
        self.end = 0.0
        self.pulls: list[float] = []
        self._said = 0

    def tell(self) -> None:
        """Say what is new: how many are acked in all, and the pulls that gave something, in milliseconds."""
        if self.acked > self._said:
            self._start.say({"acked": self.acked, "pulls": [round(ms, 2) for ms in self.pulls]})
            self.pulls.clear()
            self._said = self.acked


def expect(answer: Response, what: str) -> Any:
    """The JSON of a good answer. Raises RuntimeError for any other."""
    if answer.status != 200:
        raise RuntimeError(f"a {what} was answered {answer.status} {answer.body[:300]!r}")
    return msgspec.json.decode(answer.body)


async def member(target: Target, subscription: str, share: Share) -> None:
    """Pull and ack until cancelled."""
    connection = await Connection.open(target)
    base = f"/v1/subscriptions/{subscription}"
    pull = target.request("POST", f"{base}/pull", msgspec.json.encode({"max": BATCH, "wait": WAIT_S}))
    while True:
        asked = time.perf_counter()
        deliveries = expect(await connection.ask(pull), "pull")["deliveries"]
        if not deliveries:
            continue
        share.pulls.append((time.perf_counter() - asked) * 1000)
        body = msgspec.json.encode({"receipts": [delivery["receipt"] for delivery in deliveries]})
        results = expect(await connection.ask(target.request("POST", f"{base}/ack", body)), "ack")["results"]
        refused = [result for result in results if result["status"] != "acked"]
        if refused or len(results) != len(deliveries):
            raise RuntimeError(f"{len(refused)} acks were refused, the first with {refused[:1]}")
        share.acked += len(results)
        share.batches += 1
        share.id_sum += sum(delivery["message"]["id"] for delivery in deliveries)
        share.end = time.monotonic()


async def tell(share: Share) -> None:
    """Say what is new again and again, until cancelled."""
    while True:
        await asyncio.sleep(TICK_S)
        share.tell()


async def run(target: Target, subscription: str, members: int) -> None:
    """Run so many members until told to stop, and report."""
    start = ConcurrentStart()
    share = Share(start)
    start.wait()
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(member(target, subscription, share)) for _ in range(members)]
    tasks.append(loop.create_task(tell(share)))
    work = asyncio.gather(*tasks)
    loop.add_reader(start.fileno(), work.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await work
    loop.remove_reader(start.fileno())
    share.tell()
    start.say({"done": share.acked, "batches": share.batches, "sum": share.id_sum, "end": share.end})


def main() -> None:
    """Do what the command line says."""
    host, port, subscription, members = sys.argv[1:]
    uvloop.run(run(Target(host, int(port)), subscription, int(members)))


if __name__ == "__main__":
    main()
