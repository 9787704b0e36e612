"""Streams deliveries as server-sent events: `GET /v1/subscriptions/{name}/consume`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.types import Message

from app.faces.deliveries import MemberDependencies, MemberQuery, stream_member
from app.faces.sse import frames
from app.http.accept import check_deliveries
from app.http.parameters import (
    Heartbeat,
    Ticket,
    Unused,
)
from app.http.request import Request
from app.message.receipts import ReceiptCodec
from app.message.settlement import DEFAULT_PREFETCH, MAX_PREFETCH, Ack
from app.metrics.registry import REQUESTS
from subscriptions.domain.delivery import Loss
from subscriptions.domain.goodbye import Goodbye
from subscriptions.engine.durable.consumers import Consumers
from subscriptions.engine.durable.member import Member
from subscriptions.engine.gate import Gate
from subscriptions.engine.live.live_subscription import HistoryChanged
from subscriptions.ports import ReadPort

logger = logging.getLogger("gapless.http")


class ConsumeQuery(msgspec.Struct):
    """How deliveries are streamed."""

    prefetch: Annotated[int, Meta(ge=1, le=MAX_PREFETCH, description="At most this many unsettled.")] = (
        DEFAULT_PREFETCH
    )
    ack: Annotated[Ack, Meta(description="auto: settled when handed out, without receipts.")] = "manual"
    heartbeat: Heartbeat = 15
    ticket: Ticket = ""
    unused: Unused = msgspec.field(name="_", default="")


async def consume(
    request: Request[ConsumeQuery], consumers: Consumers, receipts: ReceiptCodec, read: ReadPort, gate: Gate
) -> None:
    """Stream deliveries as server-sent events, at most `prefetch` of them unsettled. Acks go to `ack`; leases
    end with the stream. It ends if the client leaves or is too slow, or if the subscription is deleted."""
    check_deliveries(request.headers.get("accept", ""))
    gate.require(request.namespace)
    if request.scope["method"] == "HEAD":
        await consumers.find(request.namespace, request.name, fresh=True)
        await request.send(_start(request))
        await request.send({"type": "http.response.body", "body": b""})
        return
    # Half a second early rather than late: clients count the seconds too.
    silence_s = request.query.heartbeat - 0.5
    query = MemberQuery(
        request.namespace,
        request.name,
        request.query.prefetch,
        request.query.ack == "auto",
        silence_s,
        request.principal.lifetime,
    )
    await stream_member(MemberDependencies(consumers, receipts, read), query, _Sse(request))


def _start(request: Request[ConsumeQuery]) -> Message:
    headers = [*frames.HEADERS, (b"x-request-id", request.id)]
    return {"type": "http.response.start", "status": 200, "headers": headers}


class _Sse:
    """Writes one member's deliveries to one connection, as server-sent events."""

    __slots__ = ("_connection", "_first", "_request")

    def __init__(self, request: Request[ConsumeQuery]) -> None:
        self._request = request
        self._connection = request.connection
        self._first = frames.RETRY

    async def opened(self, member: Member) -> None:
        connection = self._connection
        member.count_with(connection.queue)
        connection.on_lost = member.abandon
        if connection.is_closing:
            # The connection was lost while the member was being opened.
            member.abandon()
        REQUESTS.labels("consume", 200).inc()
        await self._request.send(_start(self._request))
        connection.goodbye = frames.goodbye(Goodbye.SLOW_CONSUMER)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        await self._connection.taken()
        yield

    async def deliver(self, losses: Sequence[Loss], deliveries: Sequence[bytes]) -> None:
        await self._write(b"".join([*map(frames.gap, losses), *map(frames.delivery, deliveries)]))

    async def beat(self) -> None:
        await self._write(frames.HEARTBEAT)

    async def end(self, reason: Goodbye, lost: HistoryChanged | None) -> None:
        in_doubt = b"" if lost is None else frames.history_changed(lost)
        await self._write(in_doubt + frames.goodbye(reason), last=True)

    def failed(self) -> None:
        # The status was sent already, so only the connection can be ended.
        logger.exception("a stream failed", extra={"request_id": self._request.id.decode()})
        self._connection.abort()

    async def left(self) -> None:
        self._connection.on_lost = self._connection.goodbye = None

    async def _write(self, blocks: bytes, *, last: bool = False) -> None:
        if blocks is not frames.HEARTBEAT:
            blocks, self._first = self._first + blocks, b""
        await self._request.send({"type": "http.response.body", "body": blocks, "more_body": not last})
