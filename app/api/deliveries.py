"""The hot side of durable subscriptions: pull, ack, nack, release, extend."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import ClientDisconnect

from app.api.answers import Count, Id, Message, RetentionGap, Time
from app.faces.acks import Acks
from app.http.body import read_body
from app.http.request import Answer, Connection, Plain
from app.message.deliveries import encode_deliveries
from app.message.head import Form, PublishHead, read_head
from app.message.limits import MAX_BODY_BYTES
from app.message.publish import refuse_expectation
from app.message.receipts import ReceiptCodec
from app.message.refusals import decode_flat
from app.message.settlement import Ack
from app.metrics.registry import DELIVERED, SETTLED
from subscriptions.domain.delivery import Receipt
from subscriptions.domain.errors import Code, GaplessError, credential_ended
from subscriptions.domain.principal import Lifetime
from subscriptions.engine.durable.consumers import Consumers
from subscriptions.engine.gate import Gate

T = TypeVar("T")

MAX_PULL: Final = 1000
MAX_WAIT_S: Final = 30
Settled = Literal["acked", "nacked", "released", "extended", "lease_expired", "unknown"]


class PullRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How many deliveries, for how many seconds to wait for the first, and whether they are settled when they
    are handed out."""

    max: Annotated[int, Meta(ge=1, le=MAX_PULL)] | UnsetType | None = UNSET
    wait: Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] | UnsetType | None = UNSET
    ack: Ack | UnsetType | None = UNSET


class Delivery(msgspec.Struct):
    """One message handed out to one member. Without `receipt` and `deadline` it is settled already."""

    attempt: Count
    message: Message
    receipt: str | UnsetType = UNSET
    deadline: Time | UnsetType = UNSET


class Deliveries(msgspec.Struct):
    """The leased deliveries, and the gaps that retention made."""

    deliveries: list[Delivery]
    gaps: list[RetentionGap] | UnsetType = UNSET


class Result(msgspec.Struct):
    """The result of a receipt."""

    receipt: str
    status: Settled
    dead_letter: Id | UnsetType = UNSET
    deadline: Time | UnsetType = UNSET


class Results(msgspec.Struct):
    """One result per receipt, in order."""

    results: list[Result]


_decode_pull: Final = msgspec.json.Decoder(PullRequest)


@dataclass(frozen=True, slots=True)
class Pull:
    """Up to `max` deliveries, waiting up to `wait_s` seconds for the first."""

    max: int = 1
    wait_s: float = 0.0
    auto: bool = False


def parse_pull(body: bytes) -> Pull:
    """The body of a pull. An empty body asks for one delivery, without waiting."""
    if not body:
        return Pull()
    asked = decode_flat(_decode_pull, body)
    return Pull(asked.max or 1, asked.wait or 0.0, asked.ack == "auto")


async def pull(request: Plain, consumers: Consumers, receipts: ReceiptCodec, gate: Gate) -> Answer:
    """Lease up to `max` messages, waiting up to `wait` seconds for the first. With `"ack": "auto"` they are
    settled before they are answered, so each is handed out at most once."""
    gate.require(request.namespace)
    connection = request.connection
    lifetime = request.principal.lifetime
    asked = parse_pull(await _body(request))
    pulling = consumers.pull(request.namespace, request.name, asked.max, asked.wait_s)
    pulled = await _unless_ended(connection, lifetime, pulling)
    if connection.is_closing or lifetime.over:
        consumers.take_back(pulled)
        raise credential_ended() if lifetime.over else ClientDisconnect
    subscription, found, losses = pulled
    if asked.auto:
        try:
            found = await consumers.settle(subscription, found)
        except GaplessError:
            consumers.take_back(pulled)
            raise
        SETTLED.labels("acked").inc(len(found))
        content = encode_deliveries(((d, None) for d in found), losses)
    else:
        leased = [Receipt(subscription.id, d.message.id, d.lease) for d in found]
        if found:
            consumers.leases.hold(lifetime, leased, max(d.deadline_us for d in found))
        texts = map(receipts.encode, leased)
        content = encode_deliveries(zip(found, texts, strict=True), losses)
    DELIVERED.inc(len(found))

    def on_sent(came: bool) -> None:
        if came:
            consumers.reported(pulled)
        else:
            # The answer may have arrived, so its leases end by themselves. Its gaps are reported again.
            consumers.take_back(pulled._replace(deliveries=[]))

    return Answer(content, on_sent=on_sent)


async def ack(request: Plain, acks: Acks, gate: Gate) -> Answer:
    """Ack deliveries of the subscription in the path, or of any. The answer comes after the commit."""
    gate.require(request.namespace)
    body = await _body(request)
    return Answer(await acks.ack(body, request.principal, request.name or None))


async def nack(request: Plain, acks: Acks, gate: Gate) -> Answer:
    """Give deliveries back, to be delivered later or as dead letters."""
    gate.require(request.namespace)
    body = await _body(request)
    return Answer(await acks.nack(body, request.principal, request.name or None))


async def release(request: Plain, acks: Acks, gate: Gate) -> Answer:
    """Give deliveries back that were not worked on, as if they had not been handed out."""
    gate.require(request.namespace)
    body = await _body(request)
    return Answer(await acks.release(body, request.principal, request.name or None))


async def extend(request: Plain, acks: Acks, gate: Gate) -> Answer:
    """Move the deadlines of deliveries. The new ones count from now."""
    gate.require(request.namespace)
    body = await _body(request)
    return Answer(await acks.extend(body, request.principal, request.name or None))


async def _unless_ended(connection: Connection, lifetime: Lifetime, asking: Coroutine[Any, Any, T]) -> T:
    """Awaits the result while the client is connected and its credential is good. After that it raises
    ClientDisconnect or `unauthenticated`, so that nothing stays leased to it."""
    task = asyncio.ensure_future(asking)
    ended: Exception | None = None

    def give_up(why: Exception) -> None:
        nonlocal ended
        ended = why
        task.cancel()

    connection.on_lost = lambda: give_up(ClientDisconnect())
    stop_watching = lifetime.watch(lambda: give_up(credential_ended()))
    try:
        return await task
    except asyncio.CancelledError:
        if ended is not None:
            raise ended from None
        raise
    finally:
        stop_watching()
        connection.on_lost = None


async def _body(request: Plain) -> bytes:
    head = read_head(request.scope["headers"], events=False)
    refuse_unfit(head)
    return await read_body(request.receive, head, MAX_BODY_BYTES)


def refuse_unfit(head: PublishHead) -> None:
    if head.form is not Form.JSON:
        raise GaplessError(Code.UNSUPPORTED_MEDIA_TYPE, "send application/json")
    refuse_expectation(head)
