"""Reads the bodies of pulls, consumes, settlements and transactions, as strictly as those of publishes.

Members that are null count as not given. Every parser raises `malformed_json` or `invalid_request` about a
field.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.message.limits import MAX_ACK_WAIT_S, MAX_BACKOFF_S
from app.message.refusals import decode_flat
from subscriptions.domain.delivery import Nack
from subscriptions.domain.errors import invalid

MAX_PREFETCH: Final = 1000
DEFAULT_PREFETCH: Final = 10
MAX_RECEIPTS: Final = 1000
MAX_RECEIPT_CHARACTERS: Final = 200
"""Of a receipt in any version of the service."""
MAX_REASON_CHARACTERS: Final = 1000

ReceiptText = Annotated[str, Meta(max_length=MAX_RECEIPT_CHARACTERS)]
_Receipts = Annotated[list[ReceiptText], Meta(min_length=1, max_length=MAX_RECEIPTS)]


Ack = Literal["manual", "auto"]
"""Who settles deliveries: their receiver, or the service, which does so when it hands them out."""


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


_decode_receipts: Final = msgspec.json.Decoder(AckRequest)
_decode_nack: Final = msgspec.json.Decoder(NackRequest)
_decode_release: Final = msgspec.json.Decoder(ReleaseRequest)
_decode_extend: Final = msgspec.json.Decoder(ExtendRequest)


def parse_receipts(body: bytes) -> list[str]:
    """The body of an ack: 1 to 1000 texts."""
    return decode_flat(_decode_receipts, body).receipts


def parse_nack(body: bytes) -> tuple[list[str], Nack]:
    """Receipts, and how to give their messages back."""
    asked = decode_flat(_decode_nack, body)
    delay, reason = _given(asked.delay), _given(asked.reason)
    dead_letter = asked.dead_letter is True
    if dead_letter and delay is not None:
        raise invalid("delay", "cannot be given together with dead_letter: nothing is delivered again")
    return asked.receipts, Nack(delay, dead_letter, reason)


def parse_release(body: bytes) -> tuple[list[str], float | None]:
    """Receipts, and the seconds until their messages are due again; None: at once."""
    asked = decode_flat(_decode_release, body)
    return asked.receipts, _given(asked.delay)


def parse_extend(body: bytes) -> tuple[list[str], float | None]:
    """Receipts, and the seconds from now to their new deadline; None: the subscription's `ack_wait`."""
    asked = decode_flat(_decode_extend, body)
    return asked.receipts, _given(asked.ack_wait)


def _given(value: Any) -> Any:
    return None if value is UNSET else value
