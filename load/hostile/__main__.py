"""`python -m load.hostile`: attacks through the WebSocket face, beside a modest reader and publisher.

Each attack comes from a process of its own, against one worker. Meanwhile a publisher stores 50 messages a
second and a reader follows them. A worker must stay below 512 MB, the 99th percentile of an answer and of a
delivery below 1 s, and the reader gets each message once and in order.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from load import drill, sse
from load.api import Api
from load.children import Child, peak_bytes, python_path, raise_file_limit
from load.drill import say
from load.figure import quantile
from load.hostile.attacks import ATTACKS, HEAVY, MEMBERS
from load.server import Server, serving
from load.verdict import Breach, Verdict
from load.waiting import until
from load.wire import Connection, Target

LIMIT_BYTES = 512 * 1000 * 1000
LIMIT_S = 1.0
CHANNEL = "modest"
EVERY_S = 0.02
MESSAGES = 128
MESSAGE_BYTES = 1_000_000


@dataclass(slots=True)
class Modest:
    """A reader and a publisher of one channel: how long answers and deliveries took, and which seqs came."""

    target: Target
    answers: list[float] = field(default_factory=list)
    deliveries: list[float] = field(default_factory=list)
    stored: int = 0
    seqs: list[int] = field(default_factory=list)
    ended: int = 0

    async def read(self) -> None:
        """Follow the channel, until cancelled. A stream that ends is noted."""
        while True:
            headers = {"Last-Event-ID": self._cursor} if self._cursor else {}
            path = f"/v1/subscribe?channel={CHANNEL}&from=earliest"
            await sse.follow(self.target, path, self._take, headers)
            self.ended += 1
            await asyncio.sleep(EVERY_S)

    _cursor: str = ""

    def _take(self, events: list[sse.Event]) -> None:
        now = time.monotonic()
        for event_id, text, name in events:
            if event_id:
                self._cursor = event_id.decode()
            if not name:
                message = msgspec.json.decode(text)
                self.seqs.append(message["seq"])
                self.deliveries.append(now - message["data"]["at"])

    async def publish(self) -> None:
        """Publish until cancelled. Raises ConnectionError if an answer is not 201."""
        connection = await Connection.open(self.target)
        while True:
            began = time.monotonic()
            body = msgspec.json.encode({"data": {"at": began}})
            request = self.target.request("POST", f"/v1/channels/{CHANNEL}/messages", body)
            answer = await connection.ask(request)
            if answer.status != 201:
                raise ConnectionError(f"{answer.status} {answer.body!r}")
            self.stored += 1
            self.answers.append(time.monotonic() - began)
            await asyncio.sleep(EVERY_S)


async def _prepare(server: Server) -> None:
    """Store large messages, and make subscriptions to them."""
    api = Api(server.target)
    for _ in range(MESSAGES):
        await api.call("POST", f"/v1/channels/{HEAVY}/messages", {"data": "x" * MESSAGE_BYTES})
    for number in range(MEMBERS):
        definition = {"channels": [HEAVY], "start": "earliest", "ordering": "none", "max_deliver": 0}
        await api.call("PUT", f"/v1/subscriptions/{HEAVY}-{number}", definition)
    api.close()


@contextmanager
def _attacker(server: Server, name: str, seconds: float) -> Iterator[Child]:
    command = [sys.executable, "-P", "-m", "load.hostile.attacks", name, str(server.port), str(seconds)]
    child = Child(command, server.home / "attacks.log", {"PYTHONPATH": python_path()}).start()
    try:
        yield child
    finally:
        child.stop()


async def _beside(server: Server, modest: Modest, name: str, seconds: float, verdict: Verdict) -> None:
    """One attack, and what it cost."""
    before = set(server.own())
    with _attacker(server, name, seconds) as attacker:
        await until(lambda: attacker.code() is not None, f"the attack {name} is over", seconds + 60)
        if attacker.code() != 0:
            raise RuntimeError(f"the attack {name} failed: {attacker.tail()}")
    peak = max(map(peak_bytes, server.own()))
    answers, deliveries = quantile(modest.answers, 0.99), quantile(modest.deliveries, 0.99)
    said = f"{name}: {peak / 1e6:,.0f} MB, answers {answers:.2f} s, deliveries {deliveries:.2f} s"
    say(f"{said} (99 %), {modest.stored} published")
    verdict.add(Breach.SHORT, said, count=peak > LIMIT_BYTES)
    verdict.add(Breach.SLOW, said, count=not (answers < LIMIT_S and deliveries < LIMIT_S))
    verdict.add(Breach.FAILED, f"{name}: the reader's stream ended", count=modest.ended)
    verdict.add(Breach.FAILED, f"{name}: a process ended", count=len(before - set(server.own())))


async def _judge(name: str, seconds: float, verdict: Verdict) -> None:
    """One attack on a service of its own, since memory that was taken once is not always given back."""
    async with serving() as server:
        await _prepare(server)
        modest = Modest(server.target)
        reading, publishing = asyncio.create_task(modest.read()), asyncio.create_task(modest.publish())
        try:
            await _beside(server, modest, name, seconds, verdict)
            failed = publishing.exception() if publishing.done() else None
            verdict.add(Breach.FAILED, f"{name}: a publish: {failed}", count=failed is not None)
            publishing.cancel()
            await until(lambda: len(modest.seqs) >= modest.stored, "the reader got all")
        finally:
            reading.cancel()
            publishing.cancel()
            await asyncio.wait([reading, publishing])
        lost = modest.stored - len(set(modest.seqs))
        verdict.add(Breach.LOST, f"{name}: {modest.stored} stored", count=lost)
        ordered = modest.seqs == sorted(set(modest.seqs))
        verdict.add(Breach.OUT_OF_ORDER, f"{name}: {modest.seqs}", count=not ordered)


async def trial(names: Sequence[str], seconds: float) -> Verdict:
    """The attacks in turn."""
    told = (Breach.SHORT, Breach.SLOW, Breach.LOST, Breach.OUT_OF_ORDER)
    verdict = Verdict(told, f"{len(names)} attacks of {seconds:g} s")
    for name in names:
        await _judge(name, seconds, verdict)
    return verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once."""
    parser = drill.parser("hostile", __doc__, "", "--only members --seconds 20")
    parser.add_argument("--only", action="append", choices=sorted(ATTACKS), help="this attack; may repeat")
    parser.add_argument("--seconds", type=float, default=10.0, help="the length of each attack")
    asked = parser.parse_args(arguments)
    raise_file_limit()
    names = asked.only or list(ATTACKS)
    return drill.conclude(drill.played(lambda: asyncio.run(trial(names, asked.seconds))))


if __name__ == "__main__":
    sys.exit(main())
