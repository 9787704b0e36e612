"""Transactions: messages that are published and deliveries that are acked, all of it or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.api.answers import Count, Position
from app.api.deliveries import refuse_unfit
from app.api.publish import committed, fingerprint
from app.http.body import read_body
from app.http.request import Answer, Plain
from app.message import json, limits
from app.message.changes import check_sendable
from app.message.head import read_head
from app.message.message import encode_positions
from app.message.publish import NOBODY, AddressedMessage, addressed
from app.message.receipts import ReceiptCodec
from app.message.refusals import FAILURES, members, refuse
from app.message.settlement import ReceiptText
from app.metrics.registry import PUBLISHED, SETTLED
from subscriptions.domain.delivery import Receipt
from subscriptions.domain.errors import Code, FieldError, GaplessError, invalid
from subscriptions.domain.model import Append, Appended, NewMessage
from subscriptions.domain.names import check_channel
from subscriptions.domain.principal import Action, Noun, Principal
from subscriptions.engine.durable.announcing import AnnouncingTransactions
from subscriptions.engine.durable.consumers import Consumers
from subscriptions.engine.gate import Gate

MAX_TRANSACTION_MESSAGES: Final = 10_000
MAX_TRANSACTION_RECEIPTS: Final = 10_000


class TransactionAck(msgspec.Struct, forbid_unknown_fields=True):
    """Deliveries of one subscription."""

    subscription: limits.Name
    receipts: Annotated[list[ReceiptText], Meta(min_length=1, max_length=MAX_TRANSACTION_RECEIPTS)]


class TransactionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The messages to publish and the deliveries to ack. One of the two may be missing."""

    publish: (
        Annotated[list[AddressedMessage], Meta(max_length=MAX_TRANSACTION_MESSAGES)] | UnsetType | None
    ) = UNSET
    ack: Annotated[list[TransactionAck], Meta(max_length=MAX_TRANSACTION_RECEIPTS)] | UnsetType | None = UNSET


class Committed(msgspec.Struct):
    """The messages that a transaction published, and how many receipts it acked."""

    messages: list[Position]
    acked: Count


_decode: Final = msgspec.json.Decoder(TransactionRequest).decode


@dataclass(frozen=True, slots=True)
class Transaction:
    """Messages to publish, and (subscription, receipts) to settle, together or not at all."""

    messages: tuple[NewMessage, ...]
    acks: tuple[tuple[str, list[str]], ...]


def parse_transaction(body: bytes, who: Principal = NOBODY) -> Transaction:
    """Messages and acks. It can also raise `payload_too_large`, as a publish does."""
    json.check_parts(body)
    try:
        asked = _decode(body)
        keys = members(asked)
        messages: tuple[NewMessage, ...] = ()
        if asked.publish:
            messages, of_messages = addressed(asked.publish, "publish", who, body)
            keys += of_messages
        acks = asked.ack or []
        _check_acks(acks)
    except FAILURES as error:
        refuse(body, error)
    json.check_text(body, keys + 2 * len(acks))
    if not messages and not acks:
        raise invalid("body", "must publish or ack something")
    return Transaction(messages, tuple((ack.subscription, ack.receipts) for ack in acks))


def _check_acks(acks: list[TransactionAck]) -> None:
    for index, ack in enumerate(acks):
        try:
            check_channel(ack.subscription, "subscription")
        except GaplessError as error:
            raise limits.within(error, f"ack[{index}]") from None
    if sum(len(ack.receipts) for ack in acks) > MAX_TRANSACTION_RECEIPTS:
        raise invalid("ack", f"holds more than {MAX_TRANSACTION_RECEIPTS} receipts in all")


async def transact(
    request: Plain,
    transactions: AnnouncingTransactions,
    consumers: Consumers,
    receipts: ReceiptCodec,
    gate: Gate,
) -> Answer:
    """Publish and ack, all of it or nothing. A consumer that also publishes has its effect exactly once."""
    gate.require(request.namespace)
    head = read_head(request.scope["headers"], events=False)
    refuse_unfit(head)
    body = await read_body(request.receive, head)
    principal = request.principal
    asked = parse_transaction(body, principal)
    check_sendable(principal, asked.messages)
    principal.require((Action.CONSUME,), Noun.SUBSCRIPTION, (name for name, _ in asked.acks))
    append = None
    if asked.messages:
        printed = b""
        if head.idempotency_key is not None:
            printed = fingerprint(request.path, head, body)
        key = principal.own_key(head.idempotency_key)
        append = Append(principal.namespace, asked.messages, key, printed, None, len(body))
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
