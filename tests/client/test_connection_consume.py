"""Consuming over WebSocket: what a server says at bad moments."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from gapless import AsyncClient, Conflict, Gap, InvalidRequest, NotFound, ProtocolError

from tests.client.faces import Time
from tests.client.model import delivery
from tests.client.push_server import PushServer, Speaker
from tests.client.raw_server import RawServer
from tests.patience import PATIENCE_S, in_time


@pytest.fixture
def server(raw_server: RawServer) -> PushServer:
    return PushServer(raw_server)


def client_of(server: PushServer, **options: Any) -> AsyncClient:
    return AsyncClient(server.url, effects=Time().async_effects(), **{"timeout": PATIENCE_S, **options})


def push(**members: Any) -> dict[str, Any]:
    return {"push": {"subscription": "orders", **members}}


def settle(server: PushServer, speaker: Speaker, statuses: dict[str, str]) -> None:
    """Answers what comes: `consume` with nothing, the others with results."""
    for command in speaker.commands:
        server.heard.append(command)
        verb = next(name for name in command if name != "id")
        if verb in statuses:
            results = [{"receipt": one, "status": statuses[verb]} for one in command[verb]["receipts"]]
            speaker.reply(command, **{verb: {"results": results}})
        elif "id" in command:
            speaker.reply(command, **{verb: {}})


SETTLED = {"ack": "acked", "nack": "nacked"}


async def test_deliveries_are_settled_over_the_connection(server: PushServer) -> None:
    gaps: list[Gap] = []

    def talk(speaker: Speaker) -> None:
        server.connect(speaker)
        # It is of a member that has ended, and must not be handed out.
        speaker.say(push(delivery=delivery(1)))
        consume = next(speaker.commands)
        server.heard.append(consume)
        speaker.say(push(delivery=delivery(2)), {"id": consume["id"], "consume": {}})
        speaker.say(push(gap={"channel": "a", "first_seq": 8, "missed": 7}))
        speaker.say(*(push(delivery=delivery(id_)) for id_ in (3, 4)))
        settle(server, speaker, SETTLED)

    server.talks = [talk]
    async with (
        client_of(server) as client,
        client.connect() as connection,
        connection.consume("orders", prefetch=7, on_gap=gaps.append) as consumer,
    ):
        first, second = await anext(consumer), await anext(consumer)
        assert (first.message.id, second.message.id) == (3, 4)
        assert (await first.ack()).status == "acked"
        assert (await second.nack(delay=5, reason="no")).status == "nacked"
    assert gaps == [Gap("a", first_seq=8, missed=7)]
    assert server.bodies("consume") == [{"subscription": "orders", "prefetch": 7}]
    assert server.bodies("ack") == [{"receipts": ["r-3-1"]}]
    assert server.bodies("nack") == [{"receipts": ["r-4-1"], "delay": 5, "reason": "no"}]
    assert {"subscription": "orders"} in server.bodies("unconsume")


@pytest.mark.parametrize("goodbye", [True, False])
async def test_leases_end_with_the_member_and_it_begins_again(server: PushServer, goodbye: bool) -> None:
    def first(speaker: Speaker) -> None:
        server.connect(speaker)
        speaker.reply(next(speaker.commands), consume={})
        speaker.say(push(delivery=delivery(3)))
        assert going.wait(PATIENCE_S)
        if goodbye:
            speaker.say(push(goodbye={"reason": "rebalanced"}))
            again(speaker)

    def again(speaker: Speaker) -> None:
        for command in speaker.commands:
            if "consume" in command:
                speaker.reply(command, consume={})
                speaker.say(push(delivery=delivery(3, attempt=2)))
                break
        settle(server, speaker, {"ack": "acked"})

    def second(speaker: Speaker) -> None:
        server.connect(speaker)
        again(speaker)

    going = threading.Event()
    server.talks = [first, second]
    async with (
        client_of(server) as client,
        client.connect() as connection,
        connection.consume("orders") as consumer,
    ):
        lost = await anext(consumer)
        going.set()
        found = await in_time(anext(consumer))
        assert (lost.lost, found.lost, found.attempt) == (True, False, 2)
        assert (await found.ack()).status == "acked"
    assert len(server.raw.seen) == (1 if goodbye else 2)


@pytest.mark.parametrize(
    ("code", "kind"), [(102, NotFound), (105, Conflict), (106, InvalidRequest), (107, InvalidRequest)]
)
async def test_a_refused_consume_is_raised(server: PushServer, code: int, kind: type[Exception]) -> None:
    def talk(speaker: Speaker) -> None:
        server.connect(speaker)
        speaker.reply(next(speaker.commands), error={"code": code, "message": "no"})
        server.serve(speaker)

    server.talks = [talk]
    async with client_of(server) as client, client.connect() as connection:
        with pytest.raises(kind):
            async with connection.consume("orders"):
                pass
        assert (await connection.publish("a", 1)).id == 1000
    # It would end another member of this connection.
    assert server.bodies("unconsume") == []


@pytest.mark.parametrize("said", [push(delivery={}), push(gap=7), push(goodbye={})])
async def test_garbage_ends_a_consumer(server: PushServer, said: dict[str, Any]) -> None:
    def talk(speaker: Speaker) -> None:
        server.connect(speaker)
        speaker.reply(next(speaker.commands), consume={})
        speaker.say(said)
        speaker.hold()

    server.talks = [talk]
    async with client_of(server) as client, client.connect() as connection:
        with pytest.raises(ProtocolError):
            await anext(connection.consume("orders"))
