"""Reads the bodies of pulls, consumes, settlements and transactions, as strictly as those of publishes.

Members that are null count as not given. Every parser raises `malformed_json` or `invalid_request` about a
field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.message import json, limits
from app.message.limits import MAX_ACK_WAIT_S, MAX_BACKOFF_S
from app.message.publish import AddressedMessage, addressed
from app.message.refusals import FAILURES, refuse
from subscriptions.domain.delivery import Nack
from subscriptions.domain.errors import GaplessError, invalid
from subscriptions.domain.model import NewMessage
from subscriptions.domain.names import check_channel

MAX_PULL: Final = 1000
MAX_PREFETCH: Final = 1000
DEFAULT_PREFETCH: Final = 10
MAX_WAIT_S: Final = 30
MAX_RECEIPTS: Final = 1000
MAX_RECEIPT_CHARACTERS: Final = 200
"""Of a receipt in any version of the service."""
MAX_REASON_CHARACTERS: Final = 1000
MAX_TRANSACTION_MESSAGES: Final = 10_000
MAX_TRANSACTION_RECEIPTS: Final = 10_000

_Receipt = Annotated[str, Meta(max_length=MAX_RECEIPT_CHARACTERS)]
_Receipts = Annotated[list[_Receipt], Meta(min_length=1, max_length=MAX_RECEIPTS)]


Ack = Literal["manual", "auto"]
"""Who settles deliveries: their receiver, or the service, which does so when it hands them out."""


class PullRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How many deliveries, for how many seconds to wait for the first, and whether they are settled when they
    are handed out."""

    max: Annotated[int, Meta(ge=1, le=MAX_PULL)] | UnsetType | None = UNSET
    wait: Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] | UnsetType | None = UNSET
    ack: Ack | UnsetType | None = UNSET


class ConsumeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Of which subscription deliveries are pushed, at most how many of them are unsettled, and whether they
    are settled when they are handed out."""

    subscription: limits.Name
    prefetch: Annotated[int, Meta(ge=1, le=MAX_PREFETCH)] | UnsetType | None = UNSET
    ack: Ack | UnsetType | None = UNSET


class UnconsumeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Of which subscription deliveries are not pushed any more."""

    subscription: limits.Name


class AckRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Which deliveries are settled."""

    receipts: _Receipts


class NackRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Which deliveries are given back: after `delay` seconds, or as dead letters."""

    receipts: _Receipts
    delay: Annotated[float, Meta(ge=0, le=MAX_BACKOFF_S)] | UnsetType | None = UNSET
    dead_letter: bool | UnsetType | None = UNSET
    reason: Annotated[str, Meta(max_length=MAX_REASON_CHARACTERS)] | UnsetType | None = UNSET


class ReleaseRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Which deliveries are given back that were not worked on: at once, or after `delay` seconds."""

    receipts: _Receipts
    delay: Annotated[float, Meta(ge=0, le=MAX_BACKOFF_S)] | UnsetType | None = UNSET


class ExtendRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Which deliveries are kept, for `ack_wait` seconds from now."""

    receipts: _Receipts
    ack_wait: Annotated[float, Meta(gt=0, le=MAX_ACK_WAIT_S)] | UnsetType | None = UNSET


class TransactionAck(msgspec.Struct, forbid_unknown_fields=True):
    """Deliveries of one subscription."""

    subscription: limits.Name
    receipts: Annotated[list[_Receipt], Meta(min_length=1, max_length=MAX_TRANSACTION_RECEIPTS)]


class TransactionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The messages to publish and the deliveries to ack. One of the two may be missing."""

    publish: (
        Annotated[list[AddressedMessage], Meta(max_length=MAX_TRANSACTION_MESSAGES)] | UnsetType | None
    ) = UNSET
    ack: Annotated[list[TransactionAck], Meta(max_length=MAX_TRANSACTION_RECEIPTS)] | UnsetType | None = UNSET


_decode_pull: Final = msgspec.json.Decoder(PullRequest)
_decode_consume: Final = msgspec.json.Decoder(ConsumeRequest)
_decode_unconsume: Final = msgspec.json.Decoder(UnconsumeRequest)
_decode_receipts: Final = msgspec.json.Decoder(AckRequest)
_decode_nack: Final = msgspec.json.Decoder(NackRequest)
_decode_release: Final = msgspec.json.Decoder(ReleaseRequest)
_decode_extend: Final = msgspec.json.Decoder(ExtendRequest)
_decode_transaction: Final = msgspec.json.Decoder(TransactionRequest).decode


@dataclass(frozen=True, slots=True)
class Pull:
    """Up to `max` deliveries, waiting up to `wait_s` seconds for the first."""

    max: int = 1
    wait_s: float = 0.0
    auto: bool = False


@dataclass(frozen=True, slots=True)
class Consume:
    """A stream of the deliveries of a subscription, at most `prefetch` of them unsettled."""

    subscription: str
    prefetch: int
    auto: bool


@dataclass(frozen=True, slots=True)
class Transaction:
    """Messages to publish, and (subscription, receipts) to settle, together or not at all."""

    messages: tuple[NewMessage, ...]
    acks: tuple[tuple[str, list[str]], ...]


def parse_pull(body: bytes) -> Pull:
    """The body of a pull. An empty body asks for one delivery, without waiting."""
    if not body:
        return Pull()
    asked = _flat(_decode_pull, body)
    return Pull(asked.max or 1, asked.wait or 0.0, asked.ack == "auto")


def parse_consume(body: bytes) -> Consume:
    """What the query of `consume` says, as a body."""
    asked = _flat(_decode_consume, body)
    name = check_channel(asked.subscription, "subscription")
    return Consume(name, asked.prefetch or DEFAULT_PREFETCH, asked.ack == "auto")


def parse_unconsume(body: bytes) -> str:
    """The name of a subscription."""
    return check_channel(_flat(_decode_unconsume, body).subscription, "subscription")


def parse_receipts(body: bytes) -> list[str]:
    """The body of an ack: 1 to 1000 texts."""
    return _flat(_decode_receipts, body).receipts


def parse_nack(body: bytes) -> tuple[list[str], Nack]:
    """Receipts, and how to give their messages back."""
    asked = _flat(_decode_nack, body)
    delay, reason = _given(asked.delay), _given(asked.reason)
    dead_letter = asked.dead_letter is True
    if dead_letter and delay is not None:
        raise invalid("delay", "cannot be given together with dead_letter: nothing is delivered again")
    return asked.receipts, Nack(delay, dead_letter, reason)


def parse_release(body: bytes) -> tuple[list[str], float | None]:
    """Receipts, and the seconds until their messages are due again; None: at once."""
    asked = _flat(_decode_release, body)
    return asked.receipts, _given(asked.delay)


def parse_extend(body: bytes) -> tuple[list[str], float | None]:
    """Receipts, and the seconds from now to their new deadline; None: the subscription's `ack_wait`."""
    asked = _flat(_decode_extend, body)
    return asked.receipts, _given(asked.ack_wait)


def parse_transaction(body: bytes, sender: str | None = None) -> Transaction:
    """Messages and acks. It can also raise `payload_too_large`, as a publish does."""
    json.check_parts(body)
    try:
        asked = _decode_transaction(body)
        keys = _members(asked)
        messages: tuple[NewMessage, ...] = ()
        if asked.publish:
            messages, of_messages = addressed(asked.publish, "publish", sender, body)
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


_Body = TypeVar("_Body", bound=msgspec.Struct)


def _flat(decoder: msgspec.json.Decoder[_Body], body: bytes) -> _Body:
    """Decode an object without objects in it."""
    try:
        asked = decoder.decode(body)
    except FAILURES as error:
        refuse(body, error)
    json.check_text(body, _members(asked))
    return asked


def _members(struct: msgspec.Struct) -> int:
    """How many members were given."""
    return sum(getattr(struct, name) is not UNSET for name in struct.__struct_fields__)


def _given(value: Any) -> Any:
    return None if value is UNSET else value
