"""`python -m load.transactions`: tests that open transactions delay no reader.

One transaction writes to another table and then idles. One publishes with `gapless.publish` and stays open.
One publishes and rolls back. Meanwhile 100 messages/s are published over HTTP, and two readers, of that
channel and of all channels, measure the age of each message on arrival. No message may be lost, doubled, out
of order or older than a second, and no rolled-back message may be seen.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from load import drill
from load.api import Api
from load.chat.drain import drain
from load.chat.follower import Crowd
from load.checker import check
from load.drill import say
from load.figure import quantile
from load.history import Cursor, History, digest_of
from load.server import Server, serving
from load.sse import Event, follow
from load.verdict import USUAL, Breach, Verdict
from load.waiting import cancel, until

RATE = 100
LATE_S = 1.0
CHANNEL = "transactions.one"
SELECTIONS = {"one channel": (CHANNEL, f"channel={CHANNEL}"), "everything": (">", "channel=%3E")}


@dataclass(slots=True)
class Reader:
    """Notes its messages in the history, and the age in seconds of those that hold a time."""

    history: History
    cursor: Cursor
    live: bool = False
    ages: list[float] = field(default_factory=list)

    def take(self, events: list[Event]) -> None:
        """Note the events of one read."""
        now = time.time()
        for _, text, name in events:
            if name == b"ready":
                self.live = True
            elif not name:
                said = msgspec.json.decode(text)
                where = (said["id"], said["channel"], said["seq"])
                self.history.deliver(self.cursor, *where, digest_of(said))
                if isinstance(said["data"], float):
                    self.ages.append(now - said["data"])

    def summary(self) -> str:
        """The ages of its messages, as text."""
        middle, high, most = (1000 * quantile(self.ages, share) for share in (0.5, 0.99, 1.0))
        age = f"age p50 {middle:.1f} ms, p99 {high:.1f} ms, oldest {most:.1f} ms"
        return f"{self.cursor.name}: {len(self.cursor.ids)} messages, {age}"


async def publish(server: Server, history: History, done: asyncio.Event) -> None:
    """Publish the current time repeatedly until `done`."""
    api = Api(server.target)
    while not done.is_set():
        body = {"data": time.time()}
        attempt = history.invoke(CHANNEL, digest_of(body))
        stored = await api.call("POST", f"/v1/channels/{CHANNEL}/messages", body)
        history.ok(attempt, stored["id"], stored["seq"])
        await asyncio.sleep(1 / RATE)
    api.close()


async def transact(server: Server, history: History, idle_s: float, held_s: float) -> None:
    """Run the three transactions, until the longest has ended."""
    idle, held, undone = [await server.connect() for _ in range(3)]
    await idle.execute("create table if not exists public.elsewhere (a integer)")
    await idle.execute("begin; insert into public.elsewhere values (1)")
    await asyncio.sleep(1)
    tries = {}
    for session, data in ((held, "held"), (undone, "rolled back")):
        tries[data] = history.invoke(CHANNEL, digest_of({"data": data}))
        await session.execute(f"begin; select gapless.publish('{CHANNEL}', '\"{data}\"')")
    await asyncio.sleep(held_s)
    await held.execute("commit")
    history.ok(tries["held"])
    await undone.execute("rollback")
    history.fail(tries["rolled back"])
    await asyncio.sleep(max(0.0, idle_s - held_s))
    for session in (idle, held, undone):
        session.terminate()


async def trial(idle_s: float, held_s: float) -> Verdict:
    """Run the drill once, on a new service."""
    history, done = History(), asyncio.Event()
    readers = [Reader(history, history.cursor(name, (pattern,))) for name, (pattern, _) in SELECTIONS.items()]
    async with serving() as server:
        streams = [
            asyncio.create_task(
                follow(server.target, f"/v1/subscribe?{query}&from=earliest", reader.take, {})
            )
            for reader, (_, query) in zip(readers, SELECTIONS.values(), strict=True)
        ]
        await until(lambda: all(reader.live for reader in readers), "both readers are live")
        publishing = asyncio.create_task(publish(server, history, done))
        await transact(server, history, idle_s, held_s)
        done.set()
        await publishing
        await asyncio.sleep(2)
        await cancel(*streams)
        await drain(Crowd(history, server.target), [CHANNEL], 1, lambda: None)
    verdict = check(history)
    verdict.told = (*USUAL, Breach.DISHONEST, Breach.SLOW)
    for reader in readers:
        say(reader.summary())
        late = [age for age in reader.ages if age > LATE_S]
        oldest = f"{reader.cursor.name}: a message was {max(late, default=0):.2f} s old"
        verdict.add(Breach.SLOW, oldest, len(late))
    return verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once."""
    parser = drill.parser("transactions", __doc__, "", "--idle 6 --held 3")
    parser.add_argument("--idle", type=float, default=120.0, help="seconds the idle transaction stays open")
    parser.add_argument("--held", type=float, default=10.0, help="seconds the publishing ones stay open")
    options = parser.parse_args(arguments)
    return drill.conclude(drill.played(lambda: asyncio.run(trial(options.idle, options.held))))


if __name__ == "__main__":
    sys.exit(main())
