"""What a type checker must conclude about the interface; checked by mypy, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import assert_type

from gapless import (
    AsyncClient,
    AsyncConsumer,
    AsyncDelivery,
    AsyncStream,
    Channel,
    Client,
    Consumer,
    DeadLetter,
    Delivery,
    Ephemeral,
    Gap,
    Joined,
    Last,
    Left,
    Marker,
    Message,
    NewMessage,
    Page,
    Presence,
    PresenceChanged,
    Published,
    PulledDelivery,
    Scheduled,
    Settled,
    Stream,
    Subscription,
)


def blocking(client: Client) -> None:
    assert_type(client.publish("a", {"n": 1}, key="k", ttl=5.0, expected_last_seq=0), Published)
    client.publish("a", 1, ephemeral=True, key="k")
    client.publish("a", 1, ephemeral=True, ttl=5)  # type: ignore[call-overload]
    client.publish("a", 1, nonsense=5)  # type: ignore[call-overload]
    assert_type(client.publish_many("a", [1, NewMessage(b"x")], idempotency_key="k"), list[Published])
    assert_type(client.publish_all([("a", 1), ("b", NewMessage(2))]), list[Published])
    assert_type(client.subscribe("a", "b.*", start=7), Stream[Message])
    assert_type(client.subscribe("a", on_gap=print), Stream[Message])
    assert_type(client.subscribe("a", on_gap="yield"), Stream[Message | Gap])
    assert_type(client.subscribe("a", ephemeral=True), Stream[Message | Gap | Ephemeral])
    assert_type(client.subscribe("a", markers=True), Stream[Message | Gap | Ephemeral | Marker])
    client.subscribe("a", start=1.5)  # type: ignore[call-overload]
    assert_type(client.history("a", start=1, order="desc"), Iterator[Page])
    assert_type(client.iter_history("a", limit=5), Stream[Message])
    assert_type(client.channels.list("a.>"), Iterator[Channel])
    for message in client.subscribe("a"):
        assert_type(message, Message)
    assert_type(client.publish("a", 1, delay=5, key="k"), Scheduled)
    assert_type(client.publish("a", 1, deliver_at="2030-01-01T00:00:00Z", ttl=5), Scheduled)
    client.publish("a", 1, delay=5, ephemeral=True)  # type: ignore[call-overload]
    client.publish("a", 1, delay=5, expected_last_seq=3)  # type: ignore[call-overload]
    assert_type(client.subscriptions.create("s", ["a"], start=7, ordering="key", push=None), Subscription)
    client.subscriptions.create("s", ["a"], ordering="lock")  # type: ignore[arg-type]
    client.subscriptions.update("s", ack_weight=3)  # type: ignore[call-arg]
    assert_type(client.dead_letters.list(reason="expired"), Iterator[DeadLetter])
    client.dead_letters.purge("7d", reason="boredom")  # type: ignore[arg-type]
    assert_type(client.pull("s", 10, wait=5), list[PulledDelivery])
    assert_type(client.consume("s", ack="auto", prefetch=2), Stream[PulledDelivery])
    client.consume("s", ack="auto", max_hold=2)  # type: ignore[call-overload]
    assert_type(client.schedule_many("a", [(5, 1), ("2030-01-01T00:00:00Z", NewMessage(2))]), list[Scheduled])
    assert_type(client.definitions.export().etag, str | None)
    assert_type(client.ack("s", client.pull("s")), list[Settled])
    assert_type(client.consume("s", prefetch=5), Consumer)
    for delivery in client.consume("s"):
        assert_type(delivery, Delivery)
        with delivery as same:
            assert_type(same.message, Message)
        client.transaction(publish=[("a", 1)], ack=[delivery, ("s", "r")])
        client.ack("s", [delivery, "r"])
    client.work("s", print, concurrency=2)


async def asynchronous(client: AsyncClient) -> None:
    assert_type(await client.publish("a", {"n": 1}, key="k"), Published)
    await client.publish("a", 1, ephemeral=True)
    assert_type(client.subscribe("a", start=Last(10)), AsyncStream[Message])
    assert_type(client.subscribe("a", on_gap="yield", types=["x"]), AsyncStream[Message | Gap])
    assert_type(client.history("a"), AsyncIterator[Page])
    async with client.subscribe("a") as stream:
        async for message in stream:
            assert_type(message, Message)
        assert_type(stream.cursor, int | None)
    async for delivery in client.consume("s"):
        async with delivery:
            assert_type(delivery, AsyncDelivery)
        assert_type(await delivery.ack(), Settled)
        await client.transaction(ack=[delivery])
    await client.work("s", print)  # type: ignore[arg-type]
    assert_type(client.scheduled.list("a"), AsyncIterator[Scheduled])
    async with client.connect(max_in_flight=10) as connection:
        assert_type(await connection.publish("a", b"x", key="k", ttl=5), Published)
        await connection.publish("a", 1, ephemeral=True)
        await connection.publish("a", 1, idempotency_key="k")  # type: ignore[call-overload]
        assert_type(connection.subscribe("a", start=7), AsyncStream[Message])
        assert_type(connection.subscribe("a", on_gap="yield"), AsyncStream[Message | Gap])
        assert_type(await connection.presence("a"), Presence)
        assert_type(
            connection.subscribe("a", presence=True),
            AsyncStream[Message | Gap | Ephemeral | Joined | Left | PresenceChanged],
        )
        assert_type(
            connection.subscribe("a", markers=True, on_gap="yield"),
            AsyncStream[Message | Gap | Ephemeral | Joined | Left | PresenceChanged | Marker],
        )
        assert_type(connection.subscribe("a", start=Last(7)), AsyncStream[Message])
        assert_type(connection.consume("s", prefetch=5), AsyncConsumer)
        assert_type(connection.consume("s", ack="auto", prefetch=5), AsyncStream[PulledDelivery])
        connection.consume("s", ack="auto", max_hold=2)  # type: ignore[call-overload]
