"""Open transactions delay nobody: `python -m load.transactions [--idle SECONDS] [--held SECONDS]`.

One transaction elsewhere in the database writes and then idles; one publishes with `gapless.publish` and
stays open; one does so and rolls back. Meanwhile 100 messages/s are published over HTTP, and a reader of that
channel and one of everything measure how old each message is when it arrives. Verdict: nothing lost, doubled
or out of order, no message older than a second, what was rolled back never seen; exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass, field

import asyncpg
import orjson

from load.server import Server, serving
from load.sse import Event, Stream
from load.wire import Connection

RATE = 100
LATE_S = 1.0
CHANNEL = "transactions.one"
REQUEST = {"one channel": f"channel={CHANNEL}", "everything": "channel=%3E"}


@dataclass(slots=True)
class Reader:
    """What one reader saw, in order: seqs, data, and the age of each numbered message in seconds."""

    name: str
    live: asyncio.Event = field(default_factory=asyncio.Event)
    seqs: list[int] = field(default_factory=list)
    data: list[object] = field(default_factory=list)
    ages: list[float] = field(default_factory=list)

    def take(self, events: list[Event]) -> None:
        """Called with each read's events."""
        now = time.time()
        for _, text, name in events:
            if name == b"ready":
                self.live.set()
            elif not name:
                message = orjson.loads(text)
                self.seqs.append(message["seq"])
                self.data.append(message["data"])
                if isinstance(message["data"], float):
                    self.ages.append(now - message["data"])

    def faults(self, published: int) -> list[str]:
        """What is wrong with it, in words."""
        found = []
        if self.seqs != list(range(1, published + 1)):
            found.append(f"{self.name}: {len(self.seqs)} messages, not 1 to {published} in order")
        if max(self.ages, default=0.0) > LATE_S:
            found.append(f"{self.name}: a message was {max(self.ages):.2f} s old")
        if "rolled back" in self.data:
            found.append(f"{self.name}: saw what was rolled back")
        if self.data.count("held") != 1:
            found.append(f"{self.name}: saw the held message {self.data.count('held')} times")
        return found

    def summary(self) -> str:
        """Ages of what it saw."""
        ages = sorted(self.ages)
        middle, high = ages[len(ages) // 2], ages[int(len(ages) * 0.99)]
        return (
            f"{self.name}: {len(self.seqs)} messages, age p50 {1000 * middle:.1f} ms, p99 "
            f"{1000 * high:.1f} ms, oldest {1000 * ages[-1]:.1f} ms"
        )


async def connect(server: Server) -> asyncpg.Connection:
    """A user's own connection to the embedded Postgres."""
    host, port = server.postgres_address()
    connection: asyncpg.Connection = await asyncpg.connect(
        host=host, port=port, user="gapless_owner", database="gapless"
    )
    return connection


async def follow(server: Server, reader: Reader) -> Stream:
    """Subscribe and wait until it is live."""
    query = REQUEST[reader.name]
    request = server.target.request("GET", f"/v1/subscribe?{query}&from=earliest")
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(
        lambda: Stream(request, lambda status, head: None, reader.take, lambda: None),
        server.target.host,
        server.target.port,
    )
    await reader.live.wait()
    return stream


async def publish(server: Server, done: asyncio.Event) -> int:
    """Publish the time of day, over and over, until `done`; how many."""
    connection = await Connection.open(server.target)
    number = 0
    while not done.is_set():
        body = orjson.dumps({"data": time.time()})
        request = server.target.request("POST", f"/v1/channels/{CHANNEL}/messages", body)
        answer = await connection.ask(request)
        if answer.status != 201:
            raise RuntimeError(f"a publish was answered {answer.status}: {answer.body!r}")
        number += 1
        await asyncio.sleep(1 / RATE)
    connection.close()
    return number


async def trial(idle_s: float, held_s: float) -> list[str]:
    """Run it; what was wrong."""
    readers = [Reader(name) for name in REQUEST]
    async with serving() as server:
        streams = [await follow(server, reader) for reader in readers]
        sessions = [await connect(server) for _ in range(3)]
        idle, held, undone = sessions
        done = asyncio.Event()
        await idle.execute("create table if not exists public.elsewhere (a integer)")
        await idle.execute("begin; insert into public.elsewhere values (1)")
        publishing = asyncio.create_task(publish(server, done))
        await asyncio.sleep(1)
        await held.execute(f"begin; select gapless.publish('{CHANNEL}', '\"held\"')")
        await undone.execute(f"begin; select gapless.publish('{CHANNEL}', '\"rolled back\"')")
        await asyncio.sleep(held_s)
        await held.execute("commit")
        await undone.execute("rollback")
        await asyncio.sleep(max(0.0, idle_s - held_s))
        done.set()
        published = await publishing + 1
        await asyncio.sleep(2)
        for stream in streams:
            stream.abort()
        for session in sessions:
            session.terminate()
    for reader in readers:
        print(reader.summary())
    return [fault for reader in readers for fault in reader.faults(published)]


def main() -> int:
    """Parse, run, say the verdict."""
    parser = argparse.ArgumentParser(prog="python -m load.transactions", description=__doc__)
    parser.add_argument("--idle", type=float, default=120.0, help="seconds the idle transaction stays open")
    parser.add_argument("--held", type=float, default=10.0, help="seconds the publishing ones stay open")
    options = parser.parse_args()
    faults = asyncio.run(trial(options.idle, options.held))
    print("\n".join(faults) or "no reader was delayed; what was held came once, what was undone never")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
