"""Clients that read nothing: whatever is built for them counts until it is sent, and little is built."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import Any

import msgspec
import pytest

from app.faces.sse.consume import ConsumeQuery, consume
from app.faces.sse.query import SubscribeQuery
from app.faces.sse.subscribe import subscribe
from app.faces.websocket.emulation import connect_http_stream
from app.faces.websocket.sessions import Sessions
from subscriptions.engine.durable.member import MAX_INBOX_BYTES
from subscriptions.engine.live.feed import CHUNK_BYTES
from tests.contract.memory import MemoryHistory
from tests.engine.test_consumers import NS
from tests.unit.websocket.pipe import Client, Pipe, Scene, gave_way, play, store

MANY = 32
MESSAGES = 12
SIZE_BYTES = 100_000
BATCH_BYTES = 2 * MAX_INBOX_BYTES
"""More than the deliveries that one member is given at a time take as frames, and less than those of two."""


async def consume_all(scene: Scene, client: Client, count: int = MANY) -> None:
    for number in range(count):
        if scene.stage.queues.find(NS, f"q{number}") is None:
            scene.stage.queues.subscribe(f"q{number}", "q", ordering="none", ack_wait=10_000)
    client.send(
        *({"id": 9 + n, "consume": {"subscription": f"q{n}", "prefetch": 1000}} for n in range(count))
    )
    await asyncio.sleep(5)


def test_members_of_one_connection_build_one_batch_at_a_time_and_all_of_it_counts() -> None:
    async def program(scene: Scene) -> None:
        await store(scene.stage.log, "q", MESSAGES, SIZE_BYTES)
        client = scene.websocket()
        await consume_all(scene, client)
        got: dict[str, list[int]] = defaultdict(list)
        inbox_bytes = scene.inbox_bytes
        assert inbox_bytes > MANY * MAX_INBOX_BYTES
        while True:
            assert scene.held_bytes == scene.inbox_bytes + scene.unsent_bytes
            assert scene.unsent_bytes == len(client.pipe.waiting) < BATCH_BYTES
            for said in client.take():
                if "push" in said:
                    got[said["push"]["subscription"]].append(said["push"]["delivery"]["message"]["seq"])
            await asyncio.sleep(5)
            if not client.pipe.waiting:
                break
        assert got == {f"q{number}": list(range(1, MESSAGES + 1)) for number in range(MANY)}

    play(program)


def test_who_gives_way_for_others_loses_nothing_and_what_it_never_took_was_no_attempt() -> None:
    async def program(scene: Scene) -> None:
        budget, before = scene.shared.budget, gave_way()
        await store(scene.stage.log, "q", MESSAGES, SIZE_BYTES)
        first, second = scene.websocket(), scene.websocket()
        await consume_all(scene, first, 3)
        first.take()
        await asyncio.sleep(5)
        taken = budget.held_bytes - scene.inbox_bytes
        assert MAX_INBOX_BYTES < taken < BATCH_BYTES
        assert budget.gave_way == 0
        (holder,) = budget._held
        assert holder is first.pipe.protocol
        await store(scene.stage.log, "r", MESSAGES, SIZE_BYTES)
        scene.stage.queues.subscribe("r", "r", ordering="none", ack_wait=10_000)
        second.send({"id": 2, "consume": {"subscription": "r", "prefetch": 1000}})
        await asyncio.sleep(5)
        assert (budget.gave_way, gave_way()) == (1, before + 1)
        assert first.pipe.is_closing()
        assert not second.pipe.is_closing()
        assert budget.held_bytes == scene.inbox_bytes + len(second.pipe.waiting)
        attempts = Counter(tuple(scene.stage.attempts(f"q{number}").values()) for number in range(3))
        assert attempts == {(1,) * MESSAGES: 1, (0,) * MESSAGES: 2}

    play(program, 4 * MAX_INBOX_BYTES)


def test_a_delivery_whose_lease_ended_while_it_waited_is_not_sent() -> None:
    async def program(scene: Scene) -> None:
        client = scene.websocket()
        scene.stage.queues.subscribe("q", "q", ordering="none", ack_wait=10, max_deliver=0, backoff=[0.5])
        client.send({"id": 2, "consume": {"subscription": "q", "prefetch": 2}})
        await asyncio.sleep(1)
        await store(scene.stage.log, "q", 2, 100)
        await asyncio.sleep(35)
        (member,) = scene.members
        assert len(member.inbox) <= 4, "those whose leases ended do not pile up"
        assert scene.held_bytes == scene.inbox_bytes + scene.unsent_bytes
        client.take()
        await asyncio.sleep(1)
        sent = [said["push"]["delivery"] for said in client.take()]
        queue = scene.stage.queues.find(NS, "q")
        assert queue is not None
        leased = {delivery["message"]["id"]: delivery["attempt"] for delivery in sent}
        assert len(leased) == len(sent) > 0
        assert leased.items() <= {id_: row.attempts for id_, row in queue.rows.items()}.items()
        assert max(leased.values()) > 1

    play(program)


def test_selections_that_recover_build_one_batch_at_a_time_and_all_of_it_counts() -> None:
    async def program(scene: Scene) -> None:
        await store(scene.world.log, "lobby", MESSAGES, SIZE_BYTES)
        await asyncio.sleep(5)
        client = scene.websocket()
        selection = {"recover": True, "offset": 0, "selection": {"channel": ["lobby"]}}
        client.send(*({"id": 9 + n, "subscribe": {"channel": f"s{n}", **selection}} for n in range(MANY)))
        await asyncio.sleep(5)
        got: dict[str, list[int]] = defaultdict(list)
        while True:
            assert scene.held_bytes == scene.unsent_bytes == len(client.pipe.waiting)
            assert scene.unsent_bytes < CHUNK_BYTES + 2 * SIZE_BYTES + MANY * 200
            for said in client.take():
                if "pub" in said.get("push", ()):
                    got[said["push"]["channel"]].append(said["push"]["pub"]["seq"])
            await asyncio.sleep(5)
            if not client.pipe.waiting:
                break
        assert got == {f"s{number}": list(range(1, MESSAGES + 1)) for number in range(MANY)}

    play(program)


def test_a_history_is_read_once_the_client_has_taken_the_one_before() -> None:
    async def program(scene: Scene) -> None:
        reads = 0

        async def pause(step: str) -> None:
            nonlocal reads
            reads += 1

        history = MemoryHistory(scene.world.log, pause)
        object.__setattr__(scene.parts, "history", history)
        await store(scene.world.log, "lobby", MESSAGES, SIZE_BYTES)
        client = scene.websocket()
        asked = {"history": {"channel": "lobby", "limit": 1000}}
        client.send(*({"id": 9 + n, **asked} for n in range(MANY)))
        client.send({"id": 8, "ping": {}})
        answered: list[int] = []
        for number in range(MANY + 1):
            await asyncio.sleep(5)
            assert reads == number
            assert scene.held_bytes == scene.unsent_bytes == len(client.pipe.waiting)
            answered += [said["id"] for said in client.take()]
        assert answered[0] == 8
        assert sorted(answered) == list(range(8, 9 + MANY))

    play(program)


def emulated(scene: Scene) -> tuple[Pipe, Sessions]:
    """A client whose replies are streamed. It reads nothing from here on."""
    sessions = Sessions(scene.parts)
    command = msgspec.json.encode({"id": 1, "connect": {}})
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    pipe = scene.http(head % len(command) + command, lambda request: connect_http_stream(request, sessions))
    return pipe, sessions


@pytest.mark.parametrize("limit_bytes", [1 << 30, 200_000])
def test_what_a_streamed_emulation_says_counts_until_it_is_sent(limit_bytes: int) -> None:
    async def program(scene: Scene) -> None:
        pipe, sessions = emulated(scene)
        for _ in range(3):
            await asyncio.sleep(1)
            pipe.take()
        (name,) = sessions._streams
        modest = scene.websocket()
        for number in range(10):
            commands = [{"id": 2 + number * 1000 + n, "ping": {}} for n in range(1000)]
            sessions.received(name, b"\n".join(map(msgspec.json.encode, commands)))
            await asyncio.sleep(1)
            if number == 0:
                modest.send({"id": 2, "ping": {}})
                await asyncio.sleep(1)
            assert scene.held_bytes == len(pipe.waiting) + len(modest.pipe.waiting) <= limit_bytes
        assert len(modest.pipe.waiting) > 0
        if limit_bytes < 300_000:
            assert scene.shared.budget.gave_way == 1
            assert pipe.is_closing()
            assert not sessions._streams
            assert not modest.pipe.is_closing()
            assert "ping" in modest.take()[-1]
        else:
            assert len(pipe.waiting) > 200_000
            assert pipe.take().count(b'"ping"') == 10_000

    play(program, limit_bytes)


def test_a_stream_of_events_is_built_once_there_is_room() -> None:
    async def program(scene: Scene) -> None:
        await store(scene.world.log, "lobby", MESSAGES, SIZE_BYTES)
        await asyncio.sleep(5)
        world = scene.world
        query: Any = SubscribeQuery(channel=["lobby"], start="earliest")
        pipe = scene.http(
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            lambda request: subscribe(request, world.engine, world.reader, world.presence),
            query,
        )
        await asyncio.sleep(5)
        (reader,) = world.engine.subscriptions
        got = b""
        while True:
            got += pipe.take()
            await asyncio.sleep(5)
            assert scene.held_bytes == len(pipe.waiting)
            assert reader.cursor == (got + pipe.waiting).count(b'"seq":')
            if not pipe.waiting:
                break
        assert got.count(b'"seq":') == MESSAGES
        assert got.count(b"event: ready") == 1

    play(program)


def test_a_stream_of_deliveries_is_built_once_there_is_room_and_all_of_it_counts() -> None:
    async def program(scene: Scene) -> None:
        await store(scene.stage.log, "q", MESSAGES, SIZE_BYTES)
        scene.stage.queues.subscribe("q", "q", ordering="none", ack_wait=10_000)
        queues, parts = scene.parts.queues, scene.parts.queues.parts
        pipe = scene.http(
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            lambda request: consume(request, parts.consumers, parts.receipts, parts.read, queues.gate),
            ConsumeQuery(prefetch=1000),
        )
        await asyncio.sleep(5)
        await store(scene.stage.log, "q", MESSAGES, SIZE_BYTES)
        got = b""
        while True:
            await asyncio.sleep(5)
            (member,) = scene.members
            assert scene.held_bytes == len(pipe.waiting) + scene.inbox_bytes
            given = len(member.outstanding) - len(member.inbox)
            assert given == (got + pipe.waiting).count(b"event: delivery")
            if not pipe.waiting:
                break
            got += pipe.take()
        assert given == 2 * MESSAGES

    play(program)
