"""Streams deliveries as server-sent events: `GET /v1/subscriptions/{name}/consume`."""

from __future__ import annotations

import logging
from typing import Final

from starlette.types import Send

from app.request import Request
from app.stream import frames
from app.telemetry import CUT_OFF, DELIVERED, REQUESTS
from app.wire.accept import check_deliveries
from app.wire.deliveries import encode_delivery
from app.wire.parameters import ConsumeQuery
from app.wire.receipts import ReceiptCodec
from subscriptions.domain.delivery import Delivery, Receipt
from subscriptions.domain.errors import GaplessError
from subscriptions.domain.goodbye import Goodbye
from subscriptions.domain.selection import select
from subscriptions.engine.durable.consumers import Consumers
from subscriptions.engine.durable.member import Member
from subscriptions.engine.gate import Gate
from subscriptions.engine.live.live_subscription import HistoryChanged
from subscriptions.ports import ReadPort

logger = logging.getLogger("gapless.http")

_EVERYTHING: Final = select("default", patterns=(">",))


async def consume(
    request: Request[ConsumeQuery], consumers: Consumers, receipts: ReceiptCodec, read: ReadPort, gate: Gate
) -> None:
    """Stream deliveries as server-sent events, at most `prefetch` of them unsettled. Acks go to `ack`; leases
    end with the stream. It ends if the client leaves or is too slow, or if the subscription is deleted."""
    send = request.send
    check_deliveries(request.headers.get("accept", ""))
    gate.require()
    headers = [*frames.HEADERS, (b"x-request-id", request.id)]
    if request.scope["method"] == "HEAD":
        await consumers.find(request.namespace, request.name, fresh=True)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
        return
    member = await consumers.open(request.namespace, request.name, request.query.prefetch)
    connection = request.connection
    connection.on_lost = member.abandon
    if connection.transport.is_closing():
        # The connection was lost while the member was being opened.
        member.abandon()
    REQUESTS.labels("consume", 200).inc()
    try:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        connection.goodbye = frames.goodbye(Goodbye.SLOW_CONSUMER)
        await _Stream(member, send, receipts, read).run(request.query.heartbeat)
    except ConnectionResetError:
        pass
    except Exception:
        # The status was sent already, so only the connection can be ended. Its leases end with it.
        logger.exception("a stream failed", extra={"request_id": request.id.decode()})
        connection.abort()
    finally:
        connection.on_lost = connection.goodbye = None
        consumers.close(member)


class _Stream:
    """Writes the deliveries of one member to one connection."""

    __slots__ = ("_codec", "_first", "_member", "_read", "_send")

    def __init__(self, member: Member, send: Send, codec: ReceiptCodec, read: ReadPort) -> None:
        self._read = read
        self._member = member
        self._send = send
        self._codec = codec
        self._first = frames.RETRY

    async def run(self, heartbeat_s: float) -> None:
        """Raises ConnectionResetError when the client is gone, or cut off."""
        member = self._member
        # Half a second early rather than late: clients count the seconds too.
        silence_s = heartbeat_s - 0.5
        while True:
            deliveries = await member.next(silence_s)
            losses = list(member.losses)
            if deliveries or losses:
                DELIVERED.inc(len(deliveries))
                blocks = [*map(frames.gap, losses), *map(self._frame, deliveries)]
                await self._write(b"".join(blocks))
                member.told(losses)
            elif member.goodbye is None:
                await self._write(frames.HEARTBEAT)
            if member.goodbye is not None:
                CUT_OFF.labels(member.goodbye.value).inc()
                await self._write(await self._lost() + frames.goodbye(member.goodbye), last=True)
                return

    async def _lost(self) -> bytes:
        """The messages that this member got and the log may have lost."""
        if self._member.goodbye is not Goodbye.HISTORY_CHANGED:
            return b""
        try:
            lost = await self._read.lost(_EVERYTHING, self._member.seen)
        except GaplessError:
            return b""
        return (
            b"" if lost is None else frames.history_changed(HistoryChanged(None, lost.first_id, lost.last_id))
        )

    async def _write(self, blocks: bytes, *, last: bool = False) -> None:
        if blocks is not frames.HEARTBEAT:
            blocks, self._first = self._first + blocks, b""
        await self._send({"type": "http.response.body", "body": blocks, "more_body": not last})

    def _frame(self, delivery: Delivery) -> bytes:
        member = self._member
        receipt = Receipt(member.group.subscription.id, delivery.message.id, delivery.lease, member.holder)
        return frames.delivery(encode_delivery(delivery, self._codec.encode(receipt)))
