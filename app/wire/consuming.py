"""What members send: pulls, settlements and transactions, read from their bodies as strictly as publishes.

Members that are null count as not given. Every parser raises `malformed_json` or `invalid_request` about a
field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.wire import checks, json
from app.wire.publish import FAILURES, Addressed, addressed, refuse
from app.wire.settings import MAX_ACK_WAIT_S, MAX_BACKOFF_S
from subscriptions.domain.delivery import Nack
from subscriptions.domain.errors import GaplessError, invalid
from subscriptions.domain.model import NewMessage
from subscriptions.domain.names import check_channel

MAX_BODY_BYTES: Final = 1024 * 1024
"""Of a pull, ack, nack or extend; a transaction is as long as a batch (`checks.MAX_BODY_BYTES`)."""
MAX_PULL: Final = 1000
MAX_WAIT_S: Final = 30
MAX_RECEIPTS: Final = 1000
MAX_REASON_CHARACTERS: Final = 1000
MAX_TRANSACTION_MESSAGES: Final = 10_000
MAX_TRANSACTION_RECEIPTS: Final = 10_000

_Receipts = Annotated[list[str], Meta(min_length=1, max_length=MAX_RECEIPTS)]


class _Pull(msgspec.Struct, forbid_unknown_fields=True):
    max: Annotated[int, Meta(ge=1, le=MAX_PULL)] | UnsetType | None = UNSET
    wait: Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] | UnsetType | None = UNSET


class _Settle(msgspec.Struct, forbid_unknown_fields=True):
    receipts: _Receipts


class _Nack(msgspec.Struct, forbid_unknown_fields=True):
    receipts: _Receipts
    delay: Annotated[float, Meta(ge=0, le=MAX_BACKOFF_S)] | UnsetType | None = UNSET
    dead_letter: bool | UnsetType | None = UNSET
    reason: Annotated[str, Meta(max_length=MAX_REASON_CHARACTERS)] | UnsetType | None = UNSET


class _Extend(msgspec.Struct, forbid_unknown_fields=True):
    receipts: _Receipts
    ack_wait: Annotated[float, Meta(gt=0, le=MAX_ACK_WAIT_S)] | UnsetType | None = UNSET


class _Ack(msgspec.Struct, forbid_unknown_fields=True):
    subscription: str
    receipts: Annotated[list[str], Meta(min_length=1, max_length=MAX_TRANSACTION_RECEIPTS)]


class _Transaction(msgspec.Struct, forbid_unknown_fields=True):
    publish: Annotated[list[Addressed], Meta(max_length=MAX_TRANSACTION_MESSAGES)] | UnsetType | None = UNSET
    ack: Annotated[list[_Ack], Meta(max_length=MAX_TRANSACTION_RECEIPTS)] | UnsetType | None = UNSET


_decode_pull: Final = msgspec.json.Decoder(_Pull)
_decode_receipts: Final = msgspec.json.Decoder(_Settle)
_decode_nack: Final = msgspec.json.Decoder(_Nack)
_decode_extend: Final = msgspec.json.Decoder(_Extend)
_decode_transaction: Final = msgspec.json.Decoder(_Transaction).decode


@dataclass(frozen=True, slots=True)
class Pull:
    """Up to `max` deliveries, waiting up to `wait_s` seconds for the first."""

    max: int = 1
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Transaction:
    """Messages that appear, and (subscription, receipts) that are settled, together or not at all."""

    messages: tuple[NewMessage, ...]
    acks: tuple[tuple[str, list[str]], ...]


def parse_pull(body: bytes) -> Pull:
    """An empty body asks for one, without waiting."""
    if not body:
        return Pull()
    asked = _flat(_decode_pull, body)
    return Pull(asked.max or 1, asked.wait or 0.0)


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


def parse_extend(body: bytes) -> tuple[list[str], float | None]:
    """Receipts, and the seconds from now to their new deadline; None: as the subscription has it."""
    asked = _flat(_decode_extend, body)
    return asked.receipts, _given(asked.ack_wait)


def parse_transaction(body: bytes, sender: str | None = None) -> Transaction:
    """Messages and acks; raises `payload_too_large` too, as a publish does."""
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


def _check_acks(acks: list[_Ack]) -> None:
    for index, ack in enumerate(acks):
        try:
            check_channel(ack.subscription, "subscription")
        except GaplessError as error:
            raise checks.within(error, f"ack[{index}]") from None
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
