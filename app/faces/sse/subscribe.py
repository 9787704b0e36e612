"""Streams live subscriptions as server-sent events: `GET /v1/subscribe`."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, assert_never

from app.faces.live import LiveDependencies, LiveQuery, stream_live
from app.faces.sse import frames
from app.faces.sse.query import SubscribeQuery, read_query
from app.http.accept import streams_cloudevents
from app.http.problem import Headers
from app.http.request import Request
from app.metrics.registry import REQUESTS
from subscriptions.domain.goodbye import Goodbye
from subscriptions.domain.presence import ClientInfo
from subscriptions.engine.live.engine import LiveEngine
from subscriptions.engine.live.live_subscription import (
    Chunk,
    Ephemeral,
    Event,
    Gap,
    Heartbeat,
    HistoryChanged,
    LiveSubscription,
    Ready,
)
from subscriptions.engine.presence import Presence
from subscriptions.ports import ReadPort

logger = logging.getLogger("gapless.http")

_MESSAGES: Final = frames.MessageWire()
_CLOUDEVENTS: Final = frames.CloudEventWire()
_PRESENCE: Final = frames.PresenceEvents()


async def subscribe(
    request: Request[SubscribeQuery], live: LiveEngine, read: ReadPort, presence: Presence
) -> None:
    """Follow channels as server-sent events, from a cursor on, without a gap. The stream goes on until the
    client leaves, is too slow, or the server stops."""
    messages = _CLOUDEVENTS if streams_cloudevents(request.headers.get("accept", "")) else _MESSAGES
    selection, start = read_query(request)
    if request.scope["method"] == "HEAD":
        await request.send({"type": "http.response.start", "status": 200, "headers": _headers(request)})
        await request.send({"type": "http.response.body", "body": b""})
        return
    client = ClientInfo(str(uuid.uuid4()), request.principal.subject, time.time_ns() // 1000)
    joins = _PRESENCE if request.query.presence else None
    lifetime = request.principal.lifetime
    query = LiveQuery(selection, start, float(request.query.heartbeat), messages, client, joins, lifetime)
    await stream_live(LiveDependencies(live, read, presence), query, _Sse(request))


def _headers(request: Request[Any]) -> Headers:
    return [*frames.HEADERS, (b"x-request-id", request.id)]


class _Sse:
    """Writes one reader's events to one connection."""

    __slots__ = ("_connection", "_first", "_request", "write")

    def __init__(self, request: Request[Any]) -> None:
        self._request = request
        self._connection = request.connection
        self._first = True
        self.write = self._connection.write_chunk

    async def opened(self, subscription: LiveSubscription) -> None:
        connection = self._connection
        connection.on_lost = subscription.leave
        if connection.is_closing:
            # The connection was lost while the subscription was being opened, and no callback will say so.
            subscription.leave()
        REQUESTS.labels("sse", 200).inc()
        start = {"type": "http.response.start", "status": 200, "headers": _headers(self._request)}
        await self._request.send(start)
        connection.goodbye = frames.goodbye(Goodbye.SLOW_CONSUMER)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        await self._connection.taken()
        yield

    async def say(self, said: Event) -> str | None:
        data = _encode(said)
        if self._first and said is not Heartbeat.HEARTBEAT:
            data = frames.RETRY + data
            self._first = False
        last = isinstance(said, Goodbye)
        await self._request.send({"type": "http.response.body", "body": data, "more_body": not last})
        return said.value if isinstance(said, Goodbye) else None

    def failed(self) -> None:
        # The status was sent already. Its client resumes elsewhere.
        logger.exception("a stream failed", extra={"request_id": self._request.id.decode()})
        self._connection.abort()

    def left(self) -> None:
        self._connection.on_lost = self._connection.goodbye = None


def _encode(event: Event) -> bytes:
    match event:
        case Chunk(data):
            return data
        case Heartbeat.HEARTBEAT:
            return frames.HEARTBEAT
        case Ready():
            return frames.ready(event)
        case Gap():
            return frames.gap(event)
        case HistoryChanged():
            return frames.history_changed(event)
        case Ephemeral():
            return frames.ephemeral(event)
        case Goodbye():
            return frames.goodbye(event)
        case _:
            assert_never(event)
