"""Publishes over WebSocket: many in flight, each confirmed once or honestly unknown."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gapless import (
    AsyncClient,
    Conflict,
    Forbidden,
    GaplessError,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    ProtocolError,
    RateLimited,
    RetryPolicy,
    ServerError,
    Unauthenticated,
    Unreachable,
)

from tests.client.conftest import Later
from tests.client.faces import Time
from tests.client.push_server import CREATED_AT, PushServer, Speaker
from tests.client.raw_server import RawServer
from tests.patience import PATIENCE_S, eventually


@pytest.fixture
def server(raw_server: RawServer) -> PushServer:
    return PushServer(raw_server)


@pytest.fixture
def time() -> Time:
    return Time()


def client_of(server: PushServer, time: Time, **options: Any) -> AsyncClient:
    return AsyncClient(server.url, effects=time.async_effects(), **{"timeout": PATIENCE_S, **options})


def stored(id_: int) -> dict[str, Any]:
    return {"id": id_, "channel": "a", "seq": id_, "created_at": CREATED_AT}


async def test_what_is_published_is_what_was_given(server: PushServer, time: Time) -> None:
    async with client_of(server, time) as client, client.connect() as connection:
        headers = {"h": "v"}
        published = await connection.publish("a", {"n": 1}, type="t", key="k", headers=headers, ttl=5)
        assert (published.id, published.channel, published.replayed) == (1000, "a", False)
        await connection.publish("a", b"\0\xff")
        await connection.publish("a", None, ephemeral=True)
        with pytest.raises(TypeError, match="idempotency_key"):
            await connection.publish("a", 1, idempotency_key="k")  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="JSON"):
            await connection.publish("a", float("nan"))
    members = {"type": "t", "key": "k", "headers": {"h": "v"}, "ttl": 5}
    assert server.bodies("publish") == [
        {"channel": "a", "data": {"n": 1}, **members},
        {"channel": "a", "data_base64": "AP8="},
        {"channel": "a", "data": None, "ephemeral": True},
    ]


async def test_many_are_in_flight_and_each_gets_its_own_reply(server: PushServer, time: Time) -> None:
    def backwards(speaker: Speaker) -> None:
        server.connect(speaker)
        commands = [next(speaker.commands) for _ in range(100)]
        for command in reversed(commands):
            speaker.reply(command, publish=stored(command["publish"]["data"]))
        speaker.hold()

    server.talks = [backwards]
    async with client_of(server, time) as client, client.connect() as connection:
        published = await asyncio.gather(*(connection.publish("a", n) for n in range(1, 101)))
    assert [one.id for one in published] == list(range(1, 101))


async def test_no_more_are_in_flight_than_were_allowed(server: PushServer, time: Time) -> None:
    together: list[int] = []

    def in_pairs(speaker: Speaker) -> None:
        server.connect(speaker)
        for _ in range(3):
            pair = [next(speaker.commands), next(speaker.commands)]
            together.append(connection._in_flight)
            for command in pair:
                speaker.reply(command, publish=stored(command["publish"]["data"]))
        speaker.hold()

    server.talks = [in_pairs]
    async with client_of(server, time) as client, client.connect(max_in_flight=2) as connection:
        await asyncio.gather(*(connection.publish("a", n) for n in range(1, 7)))
        assert "0 in flight" in repr(connection)
    assert together == [2, 2, 2]


@pytest.mark.parametrize(
    ("code", "kind", "name"),
    [
        (101, Unauthenticated, "unauthenticated"),
        (102, NotFound, "channel_not_found"),
        (103, Forbidden, "forbidden"),
        (104, ServerError, "not_available"),
        (105, Conflict, "conflict"),
        (106, PayloadTooLarge, "payload_too_large"),
        (107, InvalidRequest, "invalid_request"),
        (108, InvalidRequest, "not_available"),
        (110, Unauthenticated, "credential_expired"),
        (112, InvalidRequest, "invalid_request"),
        (100, ServerError, "internal"),
        (199, InvalidRequest, "error_199"),
    ],
)
async def test_refusals_are_the_errors_of_the_client_and_not_repeated(
    server: PushServer, time: Time, code: int, kind: type[GaplessError], name: str
) -> None:
    def refuse(speaker: Speaker) -> None:
        server.connect(speaker)
        for command in speaker.commands:
            server.heard.append(command)
            speaker.reply(command, error={"code": code, "message": "as it is", "temporary": code == 100})

    server.talks = [refuse]
    async with client_of(server, time) as client, client.connect() as connection:
        with pytest.raises(kind) as caught:
            await connection.publish("a", 1)
        assert (caught.value.code, caught.value.detail) == (name, "as it is")
        assert caught.value.retryable == (code == 100)
    assert len(server.bodies("publish")) == 1


async def test_too_many_requests_are_repeated_until_there_is_room(server: PushServer, time: Time) -> None:
    def busy(speaker: Speaker) -> None:
        server.connect(speaker)
        for _ in range(2):
            refused = {"code": 111, "message": "too many", "temporary": True}
            speaker.reply(next(speaker.commands), error=refused)
        server.serve(speaker)

    server.talks = [busy]
    policy = RetryPolicy(attempts=3)
    async with client_of(server, time, retry=policy) as client, client.connect() as connection:
        assert (await connection.publish("a", 1)).id == 1000
    assert len(time.waits) == 2
    server.talks, server._opened = [busy], 0
    async with client_of(server, time, retry=RetryPolicy(attempts=2)) as client:
        with pytest.raises(RateLimited):
            await client.connect().publish("a", 1)


def lose(server: PushServer) -> Any:
    """Takes a publish and is gone, or goes on and never replies."""

    def talk(speaker: Speaker) -> None:
        server.connect(speaker)
        server.heard.append(next(speaker.commands))

    return talk


async def test_a_lost_reply_is_told_and_not_repeated(server: PushServer, time: Time) -> None:
    server.talks = [lose(server), server.serve]
    async with client_of(server, time) as client, client.connect() as connection:
        with pytest.raises(Unreachable) as caught:
            await connection.publish("a", 1)
        assert caught.value.retryable
        assert len(server.bodies("publish")) == 1
        assert (await connection.publish("a", 2)).id == 1000
    assert [one["data"] for one in server.bodies("publish")] == [1, 2]


async def test_a_reply_that_does_not_come_in_time_is_told(
    server: PushServer, time: Time, later: Later
) -> None:
    server.ping = 10 * PATIENCE_S
    late: list[dict[str, Any]] = []

    def slow(speaker: Speaker) -> None:
        server.connect(speaker)
        late.append(next(speaker.commands))
        second = next(speaker.commands)
        speaker.reply(late[0], publish=stored(7))
        speaker.reply(second, publish=stored(8))
        speaker.hold()

    server.talks = [slow]
    async with client_of(server, time) as client, client.connect() as connection:
        first = asyncio.ensure_future(connection.publish("a", 1))
        await eventually(lambda: late)
        later(1.1 * PATIENCE_S)
        with pytest.raises(Unreachable, match="no reply within"):
            await first
        assert (await connection.publish("a", 2)).id == 8


@pytest.mark.parametrize("said", [b"garbage", b'{"id":2}', b'{"id":2,"error":{}}', b'{"id":2,"error":7}'])
async def test_garbage_leaves_a_publish_unknown(server: PushServer, time: Time, said: bytes) -> None:
    def talk(speaker: Speaker) -> None:
        server.connect(speaker)
        next(speaker.commands)
        speaker.text(said)
        speaker.hold()

    server.talks = [talk, server.serve]
    async with client_of(server, time) as client, client.connect() as connection:
        with pytest.raises(Unreachable) as caught:
            await connection.publish("a", 1)
        assert isinstance(caught.value.__cause__, ProtocolError)
        assert not caught.value.retryable
        assert (await connection.publish("a", 2)).id == 1000


async def test_what_no_message_can_carry_is_refused_before_it_is_sent(server: PushServer, time: Time) -> None:
    async with client_of(server, time) as client, client.connect() as connection:
        with pytest.raises(PayloadTooLarge):
            await connection.publish("a", "x" * (2 * 1024 * 1024))
        assert (await connection.publish("a", 1)).id == 1000
    assert len(server.bodies("publish")) == 1


async def test_a_publish_that_is_cancelled_leaves_the_others_alone(server: PushServer, time: Time) -> None:
    async with client_of(server, time) as client, client.connect(max_in_flight=2) as connection:
        publishes = [asyncio.ensure_future(connection.publish("a", n)) for n in range(10)]
        await asyncio.sleep(0)
        publishes[0].cancel()
        publishes[5].cancel()
        found = await asyncio.gather(*publishes, return_exceptions=True)
        assert [isinstance(one, asyncio.CancelledError) for one in found].count(True) == 2
        assert (await connection.publish("a", 1)).channel == "a"


async def test_closing_waits_for_the_replies_under_way(server: PushServer, time: Time) -> None:
    async with client_of(server, time) as client:
        connection = client.connect()
        publishes = [asyncio.ensure_future(connection.publish("a", n)) for n in range(5)]
        await eventually(lambda: server.bodies("publish"))
        await connection.aclose()
        assert len(await asyncio.gather(*publishes)) == 5


async def test_a_server_that_ends_within_a_reply_loses_the_rest_only(server: PushServer, time: Time) -> None:
    def half(speaker: Speaker) -> None:
        server.connect(speaker)
        for n in range(3):
            command = next(speaker.commands)
            if n < 2:
                speaker.reply(command, publish=stored(n + 1))
            else:
                speaker.raw(b'\x81\x7e\x00\xc8{"id":4,"publ')

    server.talks = [half, server.serve]
    async with client_of(server, time) as client, client.connect() as connection:
        works = (connection.publish("a", n) for n in range(3))
        one, two, three = await asyncio.gather(*works, return_exceptions=True)
        assert [getattr(done, "id", None) for done in (one, two)] == [1, 2]
        assert isinstance(three, Unreachable)
