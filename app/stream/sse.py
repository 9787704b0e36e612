"""Live subscriptions over server-sent events: `GET /v1/subscribe`."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final, assert_never

from starlette.types import Receive, Scope, Send

from app.http_protocol import GaplessHttpProtocol
from app.stream import frames
from app.stream.query import read_query
from app.telemetry import CUT_OFF, REQUESTS, STREAMS
from app.wiring import Service
from subscriptions.engine.subscription import (
    Beat,
    Chunk,
    Ephemeral,
    Event,
    Gap,
    Goodbye,
    LiveSubscription,
    Ready,
)

logger = logging.getLogger("gapless.http")

_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
LINGER_S: Final = 5.0
"""A reader that was too slow has so long to take what was already written to it."""

_MESSAGES: Final = frames.MessageWire()
_CLOUDEVENTS: Final = frames.CloudEventWire()


async def subscribe(service: Service, scope: Scope, receive: Receive, send: Send) -> None:
    """Stream until the client leaves, is too slow, or the server stops."""
    query = read_query(scope)
    headers = [*_HEADERS, (b"x-request-id", scope["state"]["request_id"])]
    if scope["method"] == "HEAD":
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
        return
    wire = _CLOUDEVENTS if query.cloudevents else _MESSAGES
    subscription = await service.live.subscribe(query.selection, query.start, wire, query.heartbeat_s)
    connection: GaplessHttpProtocol = scope["extensions"]["gapless"]
    connection.on_lost = subscription.leave
    subscription.write = connection.write_chunk
    STREAMS.inc()
    REQUESTS.labels("sse", 200).inc()
    try:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _Stream(service, subscription, connection, send).run()
    except ConnectionResetError:
        pass
    except Exception:
        # The status is sent: all that is left is to end the connection, and its client resumes elsewhere.
        logger.exception("a stream failed", extra={"request_id": scope["state"]["request_id"].decode()})
        connection.abort()
    finally:
        STREAMS.dec()
        connection.on_lost = None
        subscription.write = None
        service.live.unsubscribe(subscription)


class _Stream:
    """Writes one subscription's events to one connection."""

    __slots__ = ("_connection", "_first", "_send", "_service", "_subscription")

    def __init__(
        self,
        service: Service,
        subscription: LiveSubscription,
        connection: GaplessHttpProtocol,
        send: Send,
    ) -> None:
        self._service = service
        self._subscription = subscription
        self._connection = connection
        self._send = send
        self._first = True

    async def run(self) -> None:
        """Raises ConnectionResetError when the client is gone."""
        subscription, read = self._subscription, self._service.live.read
        while True:
            if not subscription.rested:
                # Replaying history from memory must not hold up the others.
                await asyncio.sleep(0)
            subscription.rested = False
            event = await subscription.next(read)
            data = _encode(event)
            if self._first and event is not Beat.BEAT:
                data = frames.RETRY + data
                self._first = False
            await self._write(data)
            if isinstance(event, Goodbye):
                CUT_OFF.labels(event.value).inc()
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
                return

    async def _write(self, data: bytes) -> None:
        message = {"type": "http.response.body", "body": data, "more_body": True}
        self._subscription.spoke_at = time.monotonic()
        if self._connection.write_buffer_size() == 0:
            await self._send(message)
            return
        await self._write_slowly(message)

    async def _write_slowly(self, message: dict[str, object]) -> None:
        """Wait for a reader that is behind, as long as it takes something every few seconds."""
        timeout_s = self._service.settings.slow_reader_timeout
        writing = asyncio.ensure_future(self._send(message))
        try:
            left = self._connection.write_buffer_size()
            while True:
                done, _ = await asyncio.wait({writing}, timeout=timeout_s)
                if done:
                    writing.result()
                    return
                now_left = self._connection.write_buffer_size()
                if now_left >= left:
                    CUT_OFF.labels(Goodbye.SLOW_CONSUMER.value).inc()
                    self._connection.write_last(frames.goodbye(Goodbye.SLOW_CONSUMER), LINGER_S)
                    raise ConnectionResetError
                left = now_left
        finally:
            writing.cancel()


def _encode(event: Event) -> bytes:
    match event:
        case Chunk(data):
            return data
        case Beat.BEAT:
            return frames.HEARTBEAT
        case Ready():
            return frames.ready(event)
        case Gap():
            return frames.gap(event)
        case Ephemeral():
            return frames.ephemeral(event)
        case Goodbye():
            return frames.goodbye(event)
        case _:
            assert_never(event)
