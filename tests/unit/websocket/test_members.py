"""The members of a WebSocket client, on many seeds: whatever it sends, every command is answered once, no
acked message comes again, and nothing stays leased to a client that is gone."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from app.faces.acks import Acks
from app.faces.deliveries import MemberDependencies
from app.faces.websocket.codes import Ending, error_code
from app.faces.websocket.consuming import Queues
from app.faces.websocket.framing import FRAMES
from app.faces.websocket.members import COMMANDS, Members
from app.faces.websocket.replies import Replies
from app.message.receipts import ReceiptCodec
from load.websocket import Messages
from subscriptions.domain.errors import GaplessError
from subscriptions.domain.principal import Principal
from subscriptions.engine.gate import Gate
from tests.contract.memory import MemoryReader
from tests.engine.test_consumers import NS, Stage, receipt
from tests.sim.loop import SeededLoop, run

NAMES = ("q", "r", "none")
STEPS = 80


class Client:
    """A connection with its members. It sends what chance tells, some of it damaged."""

    def __init__(self, stage: Stage, chance: random.Random, seen: Counter[str]) -> None:
        codec = ReceiptCodec(b"s" * 32)
        gate = Gate()
        gate.open([NS])
        self.chance, self.seen = chance, seen
        self.framing = FRAMES
        self.replies = Replies(self, FRAMES)
        parts = MemberDependencies(stage.consumers, codec, MemoryReader(stage.log))
        queues = Queues(parts, Acks(stage.consumers, codec), gate)
        self.members = Members(self, self.replies, Principal(NS), queues)
        self.asked: dict[int, tuple[str, dict[str, Any]]] = {}
        self.answered: set[int] = set()
        self.receipts: list[tuple[str, int, str]] = []
        """Of each delivery: the subscription, the message, and the receipt."""
        self.acked: set[tuple[str, int]] = set()
        self.gone = False
        self.queued_bytes = 0
        self._messages = Messages()

    def command(self) -> None:
        """Send one."""
        method = self.chance.choice(["ack"] * 4 + sorted(COMMANDS))
        body = self._body(method)
        text = msgspec.json.encode(body)
        if self.chance.random() < 0.2:
            at = self.chance.randrange(len(text))
            text = text[:at] + self.chance.choice([b"", b"x", b'"', b"0", b"}", b"\xff"]) + text[at + 1 :]
            self.seen["damaged"] += 1
        id_ = len(self.asked) + 1
        self.asked[id_] = method, body
        try:
            self.members.take(id_, method, text)
        except GaplessError as error:
            self.replies.refuse(id_, error_code(error))

    def _body(self, method: str) -> dict[str, Any]:
        chance = self.chance
        if method == "unconsume":
            return {"subscription": chance.choice(NAMES)}
        if method == "consume":
            return {"subscription": chance.choice(NAMES), "prefetch": chance.choice([None, 0, 1, 3, 1000])}
        known = [receipt for _, _, receipt in self.receipts[-9:]]
        body: dict[str, Any] = {"receipts": chance.sample(known, chance.randint(0, min(3, len(known))))}
        if method == "nack":
            body |= chance.choice(
                [{}, {"delay": 0}, {"delay": 1, "dead_letter": True}, {"dead_letter": True}]
            )
        elif method == "release":
            body |= chance.choice([{}, {"delay": 0}, {"delay": -1}])
        elif method == "extend":
            body |= chance.choice([{}, {"ack_wait": 9}, {"ack_wait": -1}])
        return body

    def _take(self, said: dict[str, Any]) -> None:
        if "push" in said:
            name, delivery = said["push"]["subscription"], said["push"]["delivery"]
            message_id = delivery["message"]["id"]
            assert (name, message_id) not in self.acked
            self.receipts.append((name, message_id, delivery["receipt"]))
            self.seen["delivered"] += 1
            return
        id_ = said["id"]
        assert id_ not in self.answered
        self.answered.add(id_)
        if "error" in said:
            assert said["error"]["code"] in (102, 105, 107, 108), said
            self.seen[str(said["error"]["code"])] += 1
            return
        method, _ = self.asked[id_]
        for result in said[method].get("results", ()):
            self.seen[result["status"]] += 1
            if result["status"] == "acked":
                self.acked |= {
                    (name, each) for name, each, text in self.receipts if text == result["receipt"]
                }

    # What replies and members ask of a connection.

    def write(self, frames: bytes) -> None:
        if self.gone:
            return
        for message in self._messages.feed(frames):
            for line in message.split(b"\n"):
                self._take(msgspec.json.decode(line))

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        self.replies.flush()
        await asyncio.sleep(self.chance.choice([0, 0, 0.01]))
        yield

    def queue(self, size_bytes: int) -> None:
        self.queued_bytes += size_bytes
        assert self.queued_bytes >= 0

    def write_chunk(self, frames: bytes) -> bool:
        raise AssertionError("a member writes deliveries with `send`")

    def say(self, text: bytes) -> None:
        self.replies.say(text)

    def close(self, ending: Ending) -> None:
        raise AssertionError(ending)

    def unsubscribed(self, channel: str, ending: Ending) -> None:
        raise AssertionError("it follows nothing")


def play(seed: int, seen: Counter[str]) -> None:
    """One world. Clients come, send and leave; in the end all that was not acked can be pulled."""

    async def program() -> None:
        chance = random.Random(seed)
        stage = Stage(loop)
        for name in NAMES[:2]:
            stage.queues.subscribe(name, "q", ordering="none", max_deliver=0, ack_wait=10_000, backoff=[0.5])
        stored: set[int] = set()
        clients = [Client(stage, chance, seen)]
        for _ in range(STEPS):
            kind = chance.random()
            if kind < 0.15:
                stored |= set(await stage.store(count=chance.randint(1, 3)))
            elif kind < 0.2:
                leave(clients[-1])
                clients.append(Client(stage, chance, seen))
            else:
                clients[-1].command()
            if chance.random() < 0.4:
                await asyncio.sleep(chance.choice([0, 0.001, 0.1, 1.5]))
        await asyncio.sleep(5)
        last = clients[-1]
        assert last.answered == set(last.asked)
        leave(last)
        await asyncio.sleep(5)
        assert stage.consumers.members == 0
        assert [client.queued_bytes for client in clients] == [0] * len(clients)
        for name in NAMES[:2]:
            acked = {message_id for client in clients for each, message_id in client.acked if each == name}
            queue = stage.queues.find(NS, name)
            assert queue is not None
            assert not queue.leased()
            left = await drain(stage, name)
            assert left.isdisjoint(acked)
            heard = {m for client in clients for each, m, _ in client.receipts if each == name}
            assert stored - acked - left <= heard, "only what was delivered can have been settled"
        await stage.consumers.stop()

    loop = SeededLoop(seed)
    run(program(), loop=loop)


async def drain(stage: Stage, name: str) -> set[int]:
    """Pull and ack everything; those in doubt come one after the other."""
    left: set[int] = set()
    while deliveries := await stage.pull(name, 1000):
        left |= {delivery.message.id for delivery in deliveries}
        number = (await stage.consumers.find(NS, name)).id
        await stage.consumers.ack(NS, name, [receipt(delivery, number) for delivery in deliveries])
    return left


def leave(client: Client) -> None:
    """Its connection is gone."""
    client.gone = True
    client.members.stop()
    client.replies.stop()


@pytest.mark.parametrize(
    "seeds",
    [range(50), *(pytest.param(range(n, n + 50), marks=pytest.mark.drill) for n in range(50, 200, 50))],
    ids=str,
)
def test_whatever_a_client_sends_it_is_answered_and_leaves_nothing_behind(seeds: range) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        play(seed, seen)
    expected = {"delivered", "damaged", "acked", "nacked", "released", "extended", "lease_expired", "unknown"}
    assert expected | {"102", "105", "107", "108"} <= set(seen)


def test_what_waits_of_a_client_that_is_gone_is_not_carried_out() -> None:
    """Its acks count, and so does the extension that was under way."""

    async def program() -> None:
        stage = Stage(loop)
        stage.queues.subscribe("q", "q", ordering="none", ack_wait=10_000)
        client = Client(stage, random.Random(1), Counter())
        client.members.take(1, "consume", b'{"subscription":"q","prefetch":3}')
        client.asked[1] = "consume", {}
        await stage.store(count=3)
        await asyncio.sleep(2)
        receipts = [receipt for _, _, receipt in client.receipts]
        assert len(receipts) == 3
        stage.holds["extend"] = asyncio.Event()
        for verb, receipt_ in [("ack", receipts[0]), *[("extend", receipts[1]), ("nack", receipts[2])] * 500]:
            client.members.take(0, verb, msgspec.json.encode({"receipts": [receipt_]}))
        await asyncio.sleep(1)
        leave(client)
        stage.holds.pop("extend").set()
        await asyncio.sleep(1)
        assert (stage.calls["ack"], stage.calls["extend"], stage.calls["nack"]) == (1, 1, 0)
        assert stage.consumers.members == 0
        queue = stage.queues.find(NS, "q")
        assert queue is not None
        assert not queue.leased()
        assert len(stage.attempts("q")) == 2
        await stage.consumers.stop()

    loop = SeededLoop()
    run(program(), loop=loop)
