"""What a type checker must conclude about the interface; checked by mypy, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import assert_type

from gapless import (
    AsyncClient,
    AsyncStream,
    Channel,
    Client,
    Ephemeral,
    Gap,
    Message,
    NewMessage,
    Page,
    Published,
    SyncStream,
)


def blocking(client: Client) -> None:
    assert_type(client.publish("a", {"n": 1}, key="k", ttl=5.0, expected_last_seq=0), Published)
    client.publish("a", 1, ephemeral=True, key="k")
    client.publish("a", 1, ephemeral=True, ttl=5)  # type: ignore[call-overload]
    client.publish("a", 1, nonsense=5)  # type: ignore[call-overload]
    assert_type(client.publish_many("a", [1, NewMessage(b"x")], idempotency_key="k"), list[Published])
    assert_type(client.publish_all([("a", 1), ("b", NewMessage(2))]), list[Published])
    assert_type(client.subscribe("a", "b.*", after=7), SyncStream[Message])
    assert_type(client.subscribe("a", on_gap=print), SyncStream[Message])
    assert_type(client.subscribe("a", on_gap="yield"), SyncStream[Message | Gap])
    assert_type(client.subscribe("a", ephemeral=True), SyncStream[Message | Gap | Ephemeral])
    client.subscribe("a", from_="middle")  # type: ignore[call-overload]
    assert_type(client.history("a", after=1, order="desc"), Iterator[Page])
    assert_type(client.iter_history("a", limit=5), SyncStream[Message])
    assert_type(client.channels("a.>"), Iterator[Channel])
    for message in client.subscribe("a"):
        assert_type(message, Message)


async def asynchronous(client: AsyncClient) -> None:
    assert_type(await client.publish("a", {"n": 1}, key="k"), Published)
    await client.publish("a", 1, ephemeral=True)
    assert_type(client.subscribe("a", last=10), AsyncStream[Message])
    assert_type(client.subscribe("a", on_gap="yield", types=["x"]), AsyncStream[Message | Gap])
    assert_type(client.history("a"), AsyncIterator[Page])
    async with client.subscribe("a") as stream:
        async for message in stream:
            assert_type(message, Message)
        assert_type(stream.cursor, int | None)
