"""Where a subscription over WebSocket begins: what is asked for, and what is asked for after a break."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from gapless import AsyncClient, Last, Message

from tests.client.faces import Time
from tests.client.push_server import PushServer, Speaker
from tests.client.raw_server import RawServer
from tests.patience import PATIENCE_S, in_time

ZONE = timezone(timedelta(hours=2))
STARTS = [
    pytest.param(Last(2), {"last": 2}, id="last"),
    pytest.param("10m", {"since": "10m"}, id="age"),
    pytest.param("2026-11-20T14:00:00+02:00", {"since": "2026-11-20T14:00:00+02:00"}, id="text"),
    pytest.param(datetime(2026, 11, 20, 14, tzinfo=ZONE), {"since": "2026-11-20T12:00:00Z"}, id="datetime"),
]


@pytest.fixture
def server(raw_server: RawServer) -> PushServer:
    return PushServer(raw_server)


def client_of(server: PushServer) -> AsyncClient:
    return AsyncClient(server.url, effects=Time().async_effects(), timeout=PATIENCE_S)


async def take(stream: Any, count: int) -> list[int]:
    items = [await in_time(anext(stream)) for _ in range(count)]
    return [item.id for item in items if isinstance(item, Message)]


def starts(server: PushServer) -> list[dict[str, Any]]:
    """Where each subscribe began, as the server heard it."""
    found = []
    for asked in server.bodies("subscribe"):
        position = {name: asked[name] for name in ("recover", "offset") if name in asked}
        chosen = {name: value for name, value in asked["selection"].items() if name not in OTHERS}
        found.append(position | chosen)
    return found


OTHERS = ("channel", "type", "key")


@pytest.mark.parametrize(("start", "asked"), STARTS)
async def test_a_start_is_asked_for_until_there_is_a_cursor(
    server: PushServer, start: Any, asked: dict[str, Any]
) -> None:
    def lose(speaker: Speaker) -> None:
        server.connect_and_subscribe(speaker)

    def one_only(speaker: Speaker) -> None:
        name = server.connect_and_subscribe(speaker)
        speaker.say(server.push(name, 5))

    server.talks = [lose, one_only, server.serve]
    async with client_of(server) as client, client.connect() as connection:
        stream = connection.subscribe("chat.*", "b", start=start, types=["t"], keys=["k"])
        assert stream.cursor is None
        assert await take(stream, 2) == [5, 9]
        assert stream.cursor == 9
    assert starts(server) == [asked, asked, {"recover": True, "offset": 5}]
    assert {tuple(one["selection"]["type"]) for one in server.bodies("subscribe")} == {("t",)}


@pytest.mark.parametrize(("start", "asked"), STARTS)
async def test_a_start_without_messages_is_fixed_once_the_server_is_ready(
    server: PushServer, start: Any, asked: dict[str, Any]
) -> None:
    """The reply says where the messages begin, which may be far below: it is no place to go on at."""

    def ready(speaker: Speaker) -> None:
        name = server.connect_and_subscribe(speaker)
        speaker.say({"push": {"channel": name, "ready": {"cursor": 9}}})

    server.talks = [ready, server.serve]
    async with (
        client_of(server) as client,
        client.connect() as connection,
        connection.subscribe("a", start=start) as stream,
    ):
        assert stream.cursor == 9
        server.ids.append(12)
        assert await take(stream, 1) == [12]
    assert starts(server) == [asked, {"recover": True, "offset": 9}]


@pytest.mark.parametrize(
    ("start", "expected"),
    [(Last(2), [5, 9]), (Last(7), [3, 5, 9]), ("1d", [3, 5, 9]), ("earliest", [3, 5, 9])],
)
async def test_streams_begin_where_each_was_told(server: PushServer, start: Any, expected: list[int]) -> None:
    async with client_of(server) as client, client.connect() as connection:
        newest = connection.subscribe("a", start="latest")
        async with newest, connection.subscribe("a", start=start) as stream:
            assert await take(stream, len(expected)) == expected
            assert newest.cursor == 9
    assert starts(server)[0] == {}


async def test_a_time_that_cannot_be_written_is_refused_at_once(server: PushServer) -> None:
    async with client_of(server) as client:
        connection = client.connect()
        with pytest.raises(ValueError, match="a time with a zone"):
            connection.subscribe("a", start=datetime(2026, 11, 20))
        connection.subscribe("a", start=datetime(2026, 11, 20, tzinfo=UTC))
    assert server.heard == []
