"""The hot side of durable subscriptions: pull, ack, nack, release, extend, and transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect

from app.api.publish import committed
from app.faces.settling import Settling
from app.http.body import read_body
from app.http.request import Answer, Connection, Plain
from app.message.deliveries import encode_deliveries
from app.message.fingerprint import fingerprint
from app.message.head import Form, PublishHead, read_head
from app.message.limits import MAX_BODY_BYTES
from app.message.message import encode_positions
from app.message.publish import refuse_expectation
from app.message.receipts import ReceiptCodec
from app.message.settlement import parse_pull, parse_transaction
from app.metrics.registry import DELIVERED, PUBLISHED, SETTLED
from subscriptions.domain.delivery import Receipt
from subscriptions.domain.errors import Code, FieldError, GaplessError, invalid
from subscriptions.domain.model import Append, Appended
from subscriptions.engine.durable.announcing import AnnouncingTransactions
from subscriptions.engine.durable.consumers import Consumers
from subscriptions.engine.gate import Gate

T = TypeVar("T")

_JSON: Final = (b"content-type", b"application/json")


async def pull(request: Plain, consumers: Consumers, receipts: ReceiptCodec, gate: Gate) -> Answer:
    """Lease up to `max` messages, waiting up to `wait` seconds for the first. With `"ack": "auto"` they are
    settled before they are answered, so each is handed out at most once."""
    gate.require()
    connection = request.connection
    asked = parse_pull(await _body(request, optional=True))
    pulling = consumers.pull(request.namespace, request.name, asked.max, asked.wait_s)
    pulled = await _unless_lost(connection, pulling)
    if connection.is_closing:
        consumers.take_back(pulled)
        raise ClientDisconnect
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
        content = encode_deliveries(
            ((d, receipts.encode(Receipt(subscription.id, d.message.id, d.lease))) for d in found), losses
        )
    DELIVERED.inc(len(found))

    def told(came: bool) -> None:
        if came:
            consumers.told(pulled)
        else:
            # The answer may have arrived, so its leases end by themselves. Its gaps are reported again.
            consumers.take_back(pulled._replace(deliveries=[]))

    return Answer(content, told=told)


async def ack(request: Plain, settling: Settling, gate: Gate) -> Answer:
    """Ack deliveries of the subscription in the path, or of any. The answer comes after the commit."""
    gate.require()
    body = await _body(request)
    return Answer(await settling.ack(body, request.namespace, request.name or None))


async def nack(request: Plain, settling: Settling, gate: Gate) -> Answer:
    """Give deliveries back, to be delivered later or as dead letters."""
    gate.require()
    body = await _body(request)
    return Answer(await settling.nack(body, request.namespace, request.name or None))


async def release(request: Plain, settling: Settling, gate: Gate) -> Answer:
    """Give deliveries back that were not worked on, as if they had not been handed out."""
    gate.require()
    body = await _body(request)
    return Answer(await settling.release(body, request.namespace, request.name or None))


async def extend(request: Plain, settling: Settling, gate: Gate) -> Answer:
    """Move the deadlines of deliveries. The new ones count from now."""
    gate.require()
    body = await _body(request)
    return Answer(await settling.extend(body, request.namespace, request.name or None))


async def transact(
    request: Plain,
    transactions: AnnouncingTransactions,
    consumers: Consumers,
    receipts: ReceiptCodec,
    gate: Gate,
) -> Answer:
    """Publish and ack, all of it or nothing. A consumer that also publishes has its effect exactly once."""
    gate.require()
    head = read_head(request.scope["headers"])
    _refuse_unfit(head)
    body = await read_body(request.receive, head)
    asked = parse_transaction(body)
    append = None
    if asked.messages:
        printed = b""
        if head.idempotency_key is not None:
            printed = fingerprint(request.path, head, body)
        append = Append(request.namespace, asked.messages, head.idempotency_key, printed, None, len(body))
    elif head.idempotency_key is not None:
        raise invalid(
            "Idempotency-Key", "needs something to publish: acks alone are judged by their receipts"
        )
    appended, acked = await _transact(request, append, asked.acks, transactions, consumers, receipts)
    if not appended.replayed:
        PUBLISHED.inc(len(asked.messages))
        SETTLED.labels("acked").inc(acked)
    positions = encode_positions(appended.positions) if appended.positions else b""
    return committed(b'{"messages":[%b],"acked":%d}' % (positions, acked), appended)


async def _transact(
    request: Plain,
    append: Append | None,
    acks: Sequence[tuple[str, list[str]]],
    transactions: AnnouncingTransactions,
    consumers: Consumers,
    codec: ReceiptCodec,
) -> tuple[Appended, int]:
    """Returns what was published, and how many receipts were acked."""
    try:
        receipts, places = await _of_transaction(request, acks, consumers, codec)
    except GaplessError:
        # A request done under this key gets the same answer again, even if the subscriptions have changed.
        if append is None or append.idempotency_key is None:
            raise
        repeated = await transactions.repeated(append)
        if repeated is None:
            raise
        return repeated, len({text for _, texts in acks for text in texts})
    return await transactions.transact(append, receipts, places), len(receipts)


async def _unless_lost(connection: Connection, asking: Coroutine[Any, Any, T]) -> T:
    """Awaits the result while the client is connected. Raises ClientDisconnect once it has left, so that
    nothing stays leased to it."""
    task = asyncio.ensure_future(asking)
    lost = False

    def give_up() -> None:
        nonlocal lost
        lost = True
        task.cancel()

    connection.on_lost = give_up
    try:
        return await task
    except asyncio.CancelledError:
        if lost:
            raise ClientDisconnect from None
        raise
    finally:
        connection.on_lost = None


async def _body(request: Plain, *, optional: bool = False) -> bytes:
    headers = request.scope["headers"]
    if optional and not any(name == b"content-type" for name, _ in headers):
        headers = [*headers, _JSON]
    head = read_head(headers)
    _refuse_unfit(head)
    return await read_body(request.receive, head, MAX_BODY_BYTES)


def _refuse_unfit(head: PublishHead) -> None:
    if head.form is not Form.JSON:
        raise GaplessError(Code.UNSUPPORTED_MEDIA_TYPE, "send application/json")
    refuse_expectation(head)


async def _of_transaction(
    request: Plain,
    acks: Sequence[tuple[str, list[str]]],
    consumers: Consumers,
    codec: ReceiptCodec,
) -> tuple[list[Receipt], list[str]]:
    """The receipts, and the name of each in errors. Raises `transaction_conflict` if some are forged or of
    another subscription; the error also names receipts that are not live."""
    receipts: dict[Receipt, str] = {}
    foreign: dict[str, str] = {}
    for a, (name, texts) in enumerate(acks):
        decoded = codec.decode_all(texts)
        expected = next((r.subscription_id for r in decoded if r is not None), None)
        subscription = await consumers.find(request.namespace, name, expected=expected)
        for r, receipt in enumerate(decoded):
            place = f"ack[{a}].receipts[{r}]"
            if receipt is None or receipt.subscription_id != subscription.id:
                foreign[place] = "is not a receipt of this subscription"
            else:
                receipts.setdefault(receipt, place)
    if foreign:
        live = await consumers.live(list(receipts))
        stale = [place for place, lives in zip(receipts.values(), live, strict=True) if not lives]
        detail = (
            f"{len(foreign)} receipts are none of these subscriptions, {len(stale)} hold no lease;"
            " nothing was done"
        )
        errors = foreign | dict.fromkeys(stale, "holds no lease (any more)")
        named = tuple(FieldError(place, why) for place, why in list(errors.items())[:100])
        raise GaplessError(Code.TRANSACTION_CONFLICT, detail, errors=named)
    return list(receipts), list(receipts.values())
