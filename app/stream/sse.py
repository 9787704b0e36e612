"""Streams live subscriptions as server-sent events: `GET /v1/subscribe`."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import Final, assert_never

from starlette.types import Send

from app.request import Connection, Request
from app.stream import frames
from app.stream.query import read_query
from app.telemetry import CUT_OFF, REQUESTS, STREAMS
from app.wire.accept import streams_cloudevents
from app.wire.parameters import SubscribeQuery
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
    send = request.send
    wire = _CLOUDEVENTS if streams_cloudevents(request.headers.get("accept", "")) else _MESSAGES
    selection, start = read_query(request)
    headers = [*frames.HEADERS, (b"x-request-id", request.id)]
    if request.scope["method"] == "HEAD":
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
        return
    subscription = await live.subscribe(selection, start, wire, float(request.query.heartbeat))
    connection = request.connection
    connection.on_lost = subscription.leave
    if connection.is_closing:
        # The connection was lost while the subscription was being opened, and no callback will say so.
        subscription.leave()
    subscription.write = connection.write_chunk
    client = ClientInfo(str(uuid.uuid4()), None, time.time_ns() // 1000)
    presence.join(client, subscription, _PRESENCE if request.query.presence else None)
    STREAMS.inc()
    REQUESTS.labels("sse", 200).inc()
    try:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        connection.goodbye = frames.goodbye(Goodbye.SLOW_CONSUMER)
        await _Stream(subscription, read, connection, send).run()
    except ConnectionResetError:
        pass
    except Exception:
        # The status was sent already, so only the connection can be ended. Its client resumes elsewhere.
        logger.exception("a stream failed", extra={"request_id": request.id.decode()})
        connection.abort()
    finally:
        STREAMS.dec()
        connection.on_lost = connection.goodbye = None
        subscription.write = None
        presence.leave(client, subscription)
        live.unsubscribe(subscription)


class _Stream:
    """Writes one subscription's events to one connection."""

    __slots__ = ("_connection", "_first", "_read", "_send", "_subscription")

    def __init__(
        self, subscription: LiveSubscription, read: ReadPort, connection: Connection, send: Send
    ) -> None:
        self._subscription = subscription
        self._read = read
        self._connection = connection
        self._send = send
        self._first = True

    async def run(self) -> None:
        """Raises ConnectionResetError when the client is gone."""
        subscription, read = self._subscription, self._read
        while True:
            if not subscription.rested:
                # A replay of history from memory must not delay other streams.
                await asyncio.sleep(0)
            subscription.rested = False
            await subscription.news()
            await self._connection.taken()
            for event in await subscription.take(read):
                data = _encode(event)
                if self._first and event is not Heartbeat.HEARTBEAT:
                    data = frames.RETRY + data
                    self._first = False
                subscription.spoke_at = time.monotonic()
                last = isinstance(event, Goodbye)
                await self._send({"type": "http.response.body", "body": data, "more_body": not last})
                if isinstance(event, Goodbye):
                    CUT_OFF.labels(event.value).inc()
                    return


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
