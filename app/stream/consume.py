"""Deliveries over server-sent events: `GET /v1/subscriptions/{name}/consume`."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from starlette.types import Receive, Scope, Send

from app.http_protocol import GaplessHttpProtocol
from app.stream import frames
from app.stream.query import accepts, heartbeat, number, one, parameters
from app.telemetry import CUT_OFF, DELIVERED, REQUESTS
from app.wire.deliveries import encode_delivery
from app.wire.receipts import ReceiptCodec
from app.wiring import Service
from subscriptions.domain.delivery import Delivery, Receipt
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.names import check_channel
from subscriptions.domain.selection import select
from subscriptions.engine.group import Farewell, Member
from subscriptions.engine.subscription import HistoryChanged
from subscriptions.ports import ReadPort

logger = logging.getLogger("gapless.http")

MAX_PREFETCH: Final = 1000
DEFAULT_PREFETCH: Final = 10

_KNOWN: Final = frozenset({"prefetch", "heartbeat", "ticket", "_"})
_PREFIX: Final = len("/v1/subscriptions/")
_SUFFIX: Final = len("/consume")
_EVERYTHING: Final = select("default", patterns=(">",))
_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True, slots=True)
class ConsumeQuery:
    """At most `prefetch` deliveries unsettled; a comment after `heartbeat_s` seconds of silence."""

    name: str
    prefetch: int
    heartbeat_s: float


def read_query(scope: Scope) -> ConsumeQuery:
    """Raises `invalid_request` and `not_acceptable`."""
    if accepts(dict(scope["headers"]).get(b"accept", b"").decode("latin-1")):
        raise GaplessError(Code.NOT_ACCEPTABLE, "deliveries are not given as CloudEvents")
    given = parameters(scope["query_string"], _KNOWN, "consume")
    name = check_channel(scope["path"][_PREFIX:-_SUFFIX], "name")
    asked = one(given, "prefetch")
    prefetch = DEFAULT_PREFETCH if asked is None else number("prefetch", asked, 1, MAX_PREFETCH)
    return ConsumeQuery(name, prefetch, heartbeat(given))


async def consume(service: Service, scope: Scope, receive: Receive, send: Send) -> None:
    """Stream until the client leaves, is too slow, the subscription is deleted, or the server stops."""
    query = read_query(scope)
    service.require_ready()
    headers = [*_HEADERS, (b"x-request-id", scope["state"]["request_id"])]
    if scope["method"] == "HEAD":
        await service.consumers.find(service.namespace, query.name, fresh=True)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
        return
    codec = service.receipts
    member = await service.consumers.open(service.namespace, query.name, query.prefetch)
    connection: GaplessHttpProtocol = scope["extensions"]["gapless"]
    connection.on_lost = member.abandon
    if connection.transport.is_closing():
        # It was lost while the member was opened, when nobody was there to be told.
        member.abandon()
    REQUESTS.labels("consume", 200).inc()
    try:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        connection.farewell = frames.goodbye(Farewell.SLOW_CONSUMER)
        await _Stream(member, send, codec, service.live.read).run(query.heartbeat_s)
    except ConnectionResetError:
        pass
    except Exception:
        # The status is sent: all that is left is to end the connection; its leases end with it.
        logger.exception("a stream failed", extra={"request_id": scope["state"]["request_id"].decode()})
        connection.abort()
    finally:
        connection.on_lost = connection.farewell = None
        service.consumers.close(member)


class _Stream:
    """Writes what one member is given to one connection."""

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
            elif member.farewell is None:
                await self._write(frames.HEARTBEAT)
            if member.farewell is not None:
                CUT_OFF.labels(member.farewell.value).inc()
                await self._write(await self._lost() + frames.goodbye(member.farewell), last=True)
                return

    async def _lost(self) -> bytes:
        """What the log may have lost of what this member was given."""
        if self._member.farewell is not Farewell.HISTORY_CHANGED:
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
