"""The hot side of durable subscriptions: pull, ack, nack, extend, and transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from app.http_answers import answer_json
from app.http_protocol import GaplessHttpProtocol
from app.telemetry import DELIVERED, PUBLISHED, REQUESTS, SETTLED
from app.wire.body import read_body
from app.wire.consuming import (
    MAX_BODY_BYTES,
    parse_extend,
    parse_nack,
    parse_pull,
    parse_receipts,
    parse_transaction,
)
from app.wire.deliveries import encode_deliveries, encode_results
from app.wire.encode import encode_positions
from app.wire.fingerprint import fingerprint
from app.wire.head import Form, PublishHead, read_head
from app.wiring import Service
from subscriptions.domain.delivery import Receipt, Settled
from subscriptions.domain.errors import Code, FieldError, GaplessError, invalid
from subscriptions.domain.model import Append, Appended
from subscriptions.domain.names import check_channel

T = TypeVar("T")

_PREFIX: Final = len("/v1/subscriptions/")
_JSON: Final = (b"content-type", b"application/json")
_ANSWERED: Final = REQUESTS.labels("queue", 200)
_COMMITTED: Final = REQUESTS.labels("transaction", 201)


async def pull(service: Service, scope: Scope, receive: Receive, send: Send) -> None:
    """Up to `max` deliveries, waiting up to `wait` seconds for the first."""
    name = _name(service, scope, "pull")
    asked = parse_pull(await _body(scope, receive, MAX_BODY_BYTES, optional=True))
    pulling = service.consumers.pull(service.namespace, name, asked.max, asked.wait_s)
    connection: GaplessHttpProtocol = scope["extensions"]["gapless"]
    subscription, found = await _unless_lost(connection, pulling)
    if connection.transport.is_closing():
        service.consumers.take_back(subscription, found)
        raise ClientDisconnect
    codec = service.receipts
    content = encode_deliveries(
        (d, codec.encode(Receipt(subscription.id, d.message.id, d.lease))) for d in found
    )
    DELIVERED.inc(len(found))
    _ANSWERED.inc()
    await answer_json(scope, send, 200, content)


async def ack(service: Service, scope: Scope, receive: Receive, send: Send) -> None:
    """Settle; answered after the commit, one result a receipt."""
    name = _named(service, scope, "ack")
    texts = parse_receipts(await _body(scope, receive, MAX_BODY_BYTES))
    settled = await service.consumers.ack(service.namespace, name, _decoded(service, texts))
    await _results(scope, send, texts, settled)


async def nack(service: Service, scope: Scope, receive: Receive, send: Send) -> None:
    """Give back: for later, or as dead letters."""
    name = _named(service, scope, "nack")
    texts, how = parse_nack(await _body(scope, receive, MAX_BODY_BYTES))
    settled = await service.consumers.nack(service.namespace, name, _decoded(service, texts), how)
    await _results(scope, send, texts, settled)


async def extend(service: Service, scope: Scope, receive: Receive, send: Send) -> None:
    """Move deadlines away."""
    name = _named(service, scope, "extend")
    texts, ack_wait_s = parse_extend(await _body(scope, receive, MAX_BODY_BYTES))
    settled = await service.consumers.extend(service.namespace, name, _decoded(service, texts), ack_wait_s)
    await _results(scope, send, texts, settled)


async def transact(service: Service, scope: Scope, receive: Receive, send: Send) -> None:
    """Publish and ack, all of it or nothing."""
    service.require_ready()
    head = read_head(scope["headers"])
    _refuse_unfit(head)
    body = await read_body(receive, head)
    asked = parse_transaction(body)
    append = None
    if asked.messages:
        printed = fingerprint(scope["path"], head, body) if head.idempotency_key is not None else b""
        append = Append(service.namespace, asked.messages, head.idempotency_key, printed, None, len(body))
    elif head.idempotency_key is not None:
        raise invalid(
            "Idempotency-Key", "needs something to publish: acks alone are judged by their receipts"
        )
    appended, acked = await _transact(service, append, asked.acks)
    if not appended.replayed:
        PUBLISHED.inc(len(asked.messages))
        SETTLED.labels("acked").inc(acked)
    positions = encode_positions(appended.positions) if appended.positions else b""
    content = b'{"messages":[%b],"acked":%d}' % (positions, acked)
    _COMMITTED.inc()
    await answer_json(scope, send, 201, content, replayed=appended.replayed)


async def _transact(
    service: Service, append: Append | None, acks: Sequence[tuple[str, list[str]]]
) -> tuple[Appended, int]:
    """What was published, and how many receipts were acked."""
    try:
        receipts, places = await _of_transaction(service, acks)
    except GaplessError:
        # What was done under this key is answered as it was then, whatever became of the subscriptions since.
        if append is None or append.idempotency_key is None:
            raise
        repeated = await service.repeated(append)
        if repeated is None:
            raise
        return repeated, len({text for _, texts in acks for text in texts})
    return await service.transact(append, receipts, places), len(receipts)


async def _unless_lost(connection: GaplessHttpProtocol, asking: Coroutine[Any, Any, T]) -> T:
    """What is asked for, as long as there is somebody to answer. Raises ClientDisconnect once there is not:
    then nothing stays leased to a client that has left."""
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


def _name(service: Service, scope: Scope, verb: str) -> str:
    """The subscription in the path, once the service may decide about it."""
    name = check_channel(scope["path"][_PREFIX : -len(verb) - 1], "name")
    service.require_ready()
    return name


def _named(service: Service, scope: Scope, verb: str) -> str | None:
    """As `_name`; None where the path names none, for the receipts know their subscriptions."""
    if scope["path"] != f"/v1/{verb}":
        return _name(service, scope, verb)
    service.require_ready()
    return None


async def _body(scope: Scope, receive: Receive, limit: int, *, optional: bool = False) -> bytes:
    headers = scope["headers"]
    if optional and not any(name == b"content-type" for name, _ in headers):
        headers = [*headers, _JSON]
    head = read_head(headers)
    _refuse_unfit(head)
    return await read_body(receive, head, limit)


def _refuse_unfit(head: PublishHead) -> None:
    if head.form is not Form.JSON:
        raise GaplessError(Code.UNSUPPORTED_MEDIA_TYPE, "send application/json")
    if head.expected_last_seq is not None:
        detail = "Expected-Last-Seq speaks of one channel: publish to /v1/channels/{channel}/messages"
        raise GaplessError(Code.INVALID_REQUEST, detail, status=400)


def _decoded(service: Service, texts: Sequence[str]) -> list[Receipt | None]:
    decode = service.receipts.decode
    return [decode(text) for text in texts]


async def _of_transaction(
    service: Service, acks: Sequence[tuple[str, list[str]]]
) -> tuple[list[Receipt], list[str]]:
    """The receipts, and what each is called in errors. Raises `transaction_conflict` when some could never be
    live, forged or of another subscription; it names what is not live as well."""
    receipts: dict[Receipt, str] = {}
    foreign: dict[str, str] = {}
    for a, (name, texts) in enumerate(acks):
        decoded = _decoded(service, texts)
        expected = next((r.subscription_id for r in decoded if r is not None), None)
        subscription = await service.consumers.find(service.namespace, name, expected=expected)
        for r, receipt in enumerate(decoded):
            place = f"ack[{a}].receipts[{r}]"
            if receipt is None or receipt.subscription_id != subscription.id:
                foreign[place] = "is not a receipt of this subscription"
            else:
                receipts.setdefault(receipt, place)
    if foreign:
        live = await service.live_leases(list(receipts))
        stale = [place for place, lives in zip(receipts.values(), live, strict=True) if not lives]
        detail = (
            f"{len(foreign)} receipts are none of these subscriptions, {len(stale)} hold no lease;"
            " nothing was done"
        )
        errors = foreign | dict.fromkeys(stale, "holds no lease (any more)")
        named = tuple(FieldError(place, why) for place, why in list(errors.items())[:100])
        raise GaplessError(Code.TRANSACTION_CONFLICT, detail, errors=named)
    return list(receipts), list(receipts.values())


async def _results(scope: Scope, send: Send, texts: Sequence[str], settled: Sequence[Settled]) -> None:
    for item in settled:
        SETTLED.labels(item.status.value).inc()
    _ANSWERED.inc()
    await answer_json(scope, send, 200, encode_results(texts, settled))
