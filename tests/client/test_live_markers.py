"""Markers that move, as the streams of the client tell of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from gapless import AsyncClient, Client, Marker, Message, ProtocolError

from tests.client.model import event
from tests.client.test_reader import drain, make
from tests.patience import PATIENCE_S

MARKER = event(
    {"channel": "a", "user": "ann", "name": "read", "id": 7, "updated_at": "2026-11-20T18:04:17.000001Z"},
    "marker",
)


@pytest.fixture
def channel() -> str:
    """A name of its own for each test: they share a service."""
    return f"marked.{uuid4().hex[:10]}"


async def test_both_streams_tell_of_markers_when_asked(server_url: str, channel: str) -> None:
    async with AsyncClient(server_url, timeout=PATIENCE_S) as client, client.connect() as connection:
        first = await client.publish(channel, 1)
        async with (
            client.subscribe(channel, markers=True) as events,
            connection.subscribe(channel, markers=True) as pushes,
            client.subscribe(channel) as silent,
            connection.subscribe(channel) as quiet,
        ):
            marker = await client.markers.move(channel, first.id, user="ann")
            assert await anext(events) == await anext(pushes) == marker
            assert events.cursor == pushes.cursor == first.id
            second = await client.publish(channel, 2)
            for stream in (events, pushes, silent, quiet):
                message = await anext(stream)
                assert isinstance(message, Message)
                assert message.id == stream.cursor == second.id


def test_a_blocking_stream_tells_of_markers(server_url: str, channel: str) -> None:
    with Client(server_url, timeout=PATIENCE_S) as client:
        first = client.publish(channel, 1)
        with client.subscribe(channel, markers=True) as items:
            marker = client.markers.move(channel, first.id, user="ann", name="delivered")
            assert next(items) == marker


def test_markers_come_only_when_asked_for_and_move_no_cursor() -> None:
    for asked in (False, True):
        reader = make(markers=asked)
        assert (("markers", "true") in reader.request().params) is asked
        reader.feed(MARKER)
        at = datetime(2026, 11, 20, 18, 4, 17, 1, UTC)
        assert drain(reader) == ([Marker("a", "ann", "read", 7, at)] if asked else [])
        assert reader.cursor is None


@pytest.mark.parametrize("raw", [[], {}, {"channel": "a", "user": "u", "name": "read", "id": 1}])
def test_what_is_no_marker_is_a_protocol_error(raw: Any) -> None:
    with pytest.raises(ProtocolError, match="marker"):
        make(markers=True).feed(event(raw, "marker"))
