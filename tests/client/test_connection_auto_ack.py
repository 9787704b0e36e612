"""Consuming over WebSocket with `ack="auto"`: at most once, and nothing lost that need not be."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from gapless import AsyncClient, Gap, NotFound, ProtocolError
from gapless._async.link import READ_AHEAD_BYTES
from gapless._effects import AsyncEffects

from tests.client.cutting_proxy import CuttingProxy
from tests.client.faces import Time
from tests.client.model import delivery, message
from tests.client.push_server import PushServer, Speaker
from tests.client.raw_server import RawServer
from tests.patience import PATIENCE_S, eventually, in_time


@pytest.fixture
def server(raw_server: RawServer) -> PushServer:
    return PushServer(raw_server)


@pytest.fixture
async def name(server_url: str) -> str:
    """A subscription of its own, and the channel of the same name."""
    made = f"auto{uuid4().hex[:12]}"
    async with AsyncClient(server_url) as client:
        await client.subscriptions.create(made, [made], start="earliest", ordering="none")
    return made


def client_of(server: PushServer) -> AsyncClient:
    return AsyncClient(server.url, effects=Time().async_effects(), timeout=PATIENCE_S)


def push(**members: Any) -> dict[str, Any]:
    return {"push": {"subscription": "orders", **members}}


def settled(id_: int, **members: Any) -> dict[str, Any]:
    return push(delivery={"attempt": 1, "message": message(id_, **members)})


def obey(server: PushServer, speaker: Speaker, method: str) -> None:
    """Answers the next command, which is this one."""
    command = next(speaker.commands)
    server.heard.append(command)
    assert method in command, command
    speaker.reply(command, **{method: {}})


async def take(stream: Any, count: int) -> list[Any]:
    return [await in_time(anext(stream)) for _ in range(count)]


def ids(taken: list[Any]) -> list[int]:
    return [one.message.id for one in taken]


# --- what a server says


async def test_all_that_came_is_handed_out_whatever_becomes_of_the_connection(server: PushServer) -> None:
    gaps: list[Gap] = []

    def break_off(speaker: Speaker) -> None:
        server.connect(speaker)
        obey(server, speaker, "consume")
        speaker.say(
            push(gap={"channel": "a", "first_seq": 2, "missed": 1}), settled(2), settled(3), settled(4)
        )

    def say_goodbye(speaker: Speaker) -> None:
        server.connect(speaker)
        obey(server, speaker, "consume")
        speaker.say(settled(5), push(goodbye={"reason": "subscription_deleted"}))
        obey(server, speaker, "unconsume")
        obey(server, speaker, "consume")
        speaker.say(settled(6))
        obey(server, speaker, "unconsume")

    server.talks = [break_off, say_goodbye]
    async with (
        client_of(server) as client,
        client.connect() as connection,
        connection.consume("orders", ack="auto", prefetch=7, on_gap=gaps.append) as stream,
    ):
        first = (await take(stream, 1))[0]
        assert (first.subscription, first.receipt, first.deadline) == ("orders", None, None)
        assert ids(await take(stream, 4)) == [3, 4, 5, 6]
    assert gaps == [Gap("a", first_seq=2, missed=1)]
    assert server.bodies("consume") == [{"subscription": "orders", "prefetch": 7, "ack": "auto"}] * 3


async def test_a_slow_receiver_holds_the_service_back_and_loses_nothing(server: PushServer) -> None:
    text = "x" * (READ_AHEAD_BYTES // 4)

    def talk(speaker: Speaker) -> None:
        server.connect(speaker)
        obey(server, speaker, "consume")
        for id_ in range(1, 7):
            speaker.say(settled(id_, data=text))
        command = next(speaker.commands)
        assert "unconsume" in command
        # What was settled meanwhile comes before the reply.
        speaker.say(settled(7), settled(8))
        speaker.reply(command, unconsume={})
        obey(server, speaker, "consume")
        speaker.say(settled(9))
        speaker.hold()

    server.talks = [talk]
    async with client_of(server) as client, client.connect() as connection:
        stream = connection.consume("orders", ack="auto")
        assert ids(await take(stream, 1)) == [1]
        await eventually(lambda: stream._inlet.overrun)  # type: ignore[attr-defined]
        assert ids(await take(stream, 8)) == list(range(2, 10))
    assert len(server.raw.seen) == 1


async def test_a_service_that_leases_is_refused(server: PushServer) -> None:
    def talk(speaker: Speaker) -> None:
        server.connect(speaker)
        obey(server, speaker, "consume")
        speaker.say(push(delivery=delivery(1)))
        speaker.hold()

    server.talks = [talk]
    async with client_of(server) as client, client.connect() as connection:
        with pytest.raises(ProtocolError, match="leased"):
            await take(connection.consume("orders", ack="auto"), 1)


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({"ack": "auto", "max_hold": 5}, TypeError, "its options are prefetch, on_gap, give_up_after, ack"),
        ({"ack": "auto", "prefetch": 0}, ValueError, "1 to 1000"),
        ({"ack": "auto", "prefetch": 1001}, ValueError, "1 to 1000"),
        ({"ack": "none"}, ValueError, '"manual" or "auto"'),
    ],
)
async def test_wrong_options(
    server: PushServer, options: dict[str, Any], error: type[Exception], why: str
) -> None:
    async with client_of(server) as client:
        with pytest.raises(error, match=why):
            client.connect().consume("orders", **options)


# --- the real service


async def counts(client: AsyncClient, name: str) -> tuple[int, int, int]:
    """How many are acked, in flight, and not handed out yet."""
    stats = (await client.subscriptions.get(name)).stats
    assert stats is not None
    return stats.acked, stats.in_flight, stats.lag


async def test_each_comes_once_and_is_settled(server_url: str, name: str) -> None:
    async with AsyncClient(server_url) as client, client.connect() as connection:
        await client.publish_many(name, list(range(20)))
        async with connection.consume(name, ack="auto", prefetch=3) as stream:
            taken = await take(stream, 20)
        assert sorted(one.message.data for one in taken) == list(range(20))
        assert await counts(client, name) == (20, 0, 0)
        with pytest.raises(NotFound):
            await take(connection.consume("auto.nobody", ack="auto"), 1)


async def test_a_slow_receiver_gets_all_there_is(server_url: str, name: str) -> None:
    text, total = "x" * 100_000, 120
    async with AsyncClient(server_url) as client, client.connect() as connection:
        for start in range(0, total, 10):
            await client.publish_many(name, [[number, text] for number in range(start, start + 10)])
        # One commit for each, so that the sockets do not swallow all before it is told to stop.
        stream = connection.consume(name, ack="auto", prefetch=1)
        taken = await take(stream, 1)
        await eventually(lambda: stream._inlet.overrun)  # type: ignore[attr-defined]
        # What was claimed and not settled when it was told to stop is given back a moment later.
        acked, in_flight, lag = await counts(client, name)
        assert lag > 0, "it did not take all ahead of its receiver"
        assert acked + in_flight + lag == total
        # The connection is as good as before for all else.
        assert (await connection.publish(f"{name}.other", 1)).seq == 1
        taken += await take(stream, total - 1)
        assert sorted(one.message.data[0] for one in taken) == list(range(total))
        assert await counts(client, name) == (total, 0, 0)


async def test_cut_connections_give_each_at_most_once(server_url: str, name: str) -> None:
    brisk = AsyncEffects(chance=lambda: 0.02)
    with CuttingProxy(server_url, iter([150, 500, 700, 900, 1100, 50])) as proxy:
        async with (
            AsyncClient(server_url) as steady,
            AsyncClient(proxy.url, effects=brisk) as client,
            client.connect() as connection,
        ):

            async def feed() -> None:
                for number in range(10**6):
                    # How much a break loses has no limit, and the receiver must not wait in vain.
                    await steady.publish(name, number)

            feeding = asyncio.create_task(feed())
            try:
                found = [one.message.id for one in await take(connection.consume(name, ack="auto"), 60)]
            finally:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
        assert proxy.cuts == 6
    assert len(found) == len(set(found))
