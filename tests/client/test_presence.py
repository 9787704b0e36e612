"""Presence over a connection: who reads a channel, and who joins and leaves it."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from gapless import (
    AsyncClient,
    Joined,
    Left,
    Message,
    Presence,
    PresenceChanged,
    PresentClient,
    ProtocolError,
)
from gapless._calls.presence import presence_event_from, presence_from

from tests.patience import PATIENCE_S


@pytest.fixture
def channel() -> str:
    """A name of its own for each test: they share a service."""
    return f"room.{uuid4().hex[:10]}"


async def test_a_connection_tells_who_is_there_who_comes_and_who_goes(server_url: str, channel: str) -> None:
    async with AsyncClient(server_url, timeout=PATIENCE_S) as client:
        async with client.connect() as room, room.subscribe(channel, presence=True) as items:
            (me,) = (await room.presence(channel)).clients
            async with client.connect() as other, other.subscribe(channel):
                joined = await anext(items)
                assert isinstance(joined, Joined)
                assert joined.channel == channel
                assert joined.client != me.client
                there = await room.presence(channel)
                assert there.complete
                assert {one.client for one in there.clients} == {me.client, joined.client}
                await other.publish(channel, "hi")
                message = await anext(items)
                assert isinstance(message, Message)
                assert message.data == "hi"
            assert await anext(items) == Left(channel, joined.client, joined.user)
            assert await room.presence(channel) == Presence((me,), complete=True)
        with pytest.raises(RuntimeError):
            await room.presence(channel)


async def test_nobody_is_on_a_channel_that_does_not_exist(server_url: str, channel: str) -> None:
    async with AsyncClient(server_url, timeout=PATIENCE_S) as client, client.connect() as room:
        assert await room.presence(channel) == Presence((), complete=True)


def test_what_is_told_is_read() -> None:
    info = {"client": "c", "user": ""}
    assert presence_event_from("join", {"channel": "a", "info": info}) == Joined("a", "c", None)
    gone = {"channel": "a", "info": {"client": "c", "user": "u"}}
    assert presence_event_from("leave", gone) == Left("a", "c", "u")
    assert presence_event_from("presence", {"channel": "a", "clients": 1001}) == PresenceChanged("a", 1001)
    assert presence_from({"presence": {"c": info}, "complete": False}) == Presence(
        (PresentClient("c", None),), complete=False
    )


@pytest.mark.parametrize("raw", [None, [], {}, {"presence": 1}, {"presence": {"c": 1}}, {"channel": "a"}])
def test_something_else_is_named_as_such(raw: Any) -> None:
    with pytest.raises(ProtocolError):
        presence_from(raw)
    for kind in ("join", "leave", "presence"):
        with pytest.raises(ProtocolError):
            presence_event_from(kind, raw)
