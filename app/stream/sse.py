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
    HistoryChanged,
    LiveSubscription,
    Ready,
)

logger = logging.getLogger("gapless.http")

_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
_MESSAGES: Final = frames.MessageWire()
_CLOUDEVENTS: Final = frames.CloudEventWire()


async def subscribe(service: Service, scope: Scope, receive: Receive, send: Send) -> None:
    """Stream until the client leaves, is too slow, or the server stops."""
    query = read_query(scope, service.namespace)
    headers = [*_HEADERS, (b"x-request-id", scope["state"]["request_id"])]
    if scope["method"] == "HEAD":
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
        return
    wire = _CLOUDEVENTS if query.cloudevents else _MESSAGES
    subscription = await service.live.subscribe(query.selection, query.start, wire, query.heartbeat_s)
    connection: GaplessHttpProtocol = scope["extensions"]["gapless"]
    connection.on_lost = subscription.leave
    if connection.transport.is_closing():
        # It was lost while the subscription was being opened: nobody will tell of it any more.
        subscription.leave()
    subscription.write = connection.write_chunk
    STREAMS.inc()
    REQUESTS.labels("sse", 200).inc()
    try:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        connection.farewell = frames.goodbye(Goodbye.SLOW_CONSUMER)
        await _Stream(service, subscription, send).run()
    except ConnectionResetError:
        pass
    except Exception:
        # The status is sent: all that is left is to end the connection, and its client resumes elsewhere.
        logger.exception("a stream failed", extra={"request_id": scope["state"]["request_id"].decode()})
        connection.abort()
    finally:
        STREAMS.dec()
        connection.on_lost = connection.farewell = None
        subscription.write = None
        service.live.unsubscribe(subscription)


class _Stream:
    """Writes one subscription's events to one connection."""

    __slots__ = ("_first", "_send", "_service", "_subscription")

    def __init__(self, service: Service, subscription: LiveSubscription, send: Send) -> None:
        self._service = service
        self._subscription = subscription
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
        case Beat.BEAT:
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
