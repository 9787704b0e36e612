"""Writes deliveries and the results of settling them as the JSON of the protocol."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from app.message.message import encode_message
from app.message.times import rfc3339
from subscriptions.domain.delivery import (
    Delivery,
    Loss,
    Settled,
)

_encode: Final = msgspec.json.Encoder().encode


def encode_delivery(delivery: Delivery, receipt: str | None) -> bytes:
    """One delivery on one line. `receipt` comes from the codec and holds nothing to escape; None: the
    delivery is settled already."""
    if receipt is None:
        return b'{"attempt":%d,"message":%b}' % (delivery.attempt, encode_message(delivery.message))
    return b'{"receipt":"%b","attempt":%d,"deadline":"%b","message":%b}' % (
        receipt.encode("ascii"),
        delivery.attempt,
        rfc3339(delivery.deadline_us),
        encode_message(delivery.message),
    )


def encode_deliveries(
    deliveries: Iterable[tuple[Delivery, str | None]], losses: Iterable[Loss] = ()
) -> bytes:
    """The answer to a pull: deliveries with their receipts, and gaps if there are some."""
    encoded = b",".join([encode_delivery(delivery, receipt) for delivery, receipt in deliveries])
    gaps = b",".join([_encode(gap(loss.channel, loss.first_seq, loss.missed)) for loss in losses])
    return b'{"deliveries":[%b]%b}' % (encoded, b',"gaps":[%b]' % gaps if gaps else b"")


def gap(channel: str, first_seq: int, missed: int) -> dict[str, str | int]:
    """A gap that retention made, in the one form for all answers and streams."""
    return {"channel": channel, "first_seq": first_seq, "missed": missed}


class _Result(msgspec.Struct, omit_defaults=True):
    receipt: str
    status: str
    dead_letter: int | None = None
    deadline: str | None = None


def encode_results(receipts: Sequence[str], settled: Sequence[Settled]) -> bytes:
    """The answer to an ack, nack, release or extend: one result per receipt, in the order of the request."""
    results = [
        _Result(receipt, status, entry, rfc3339(deadline_us).decode() if deadline_us is not None else None)
        for receipt, (status, entry, deadline_us) in zip(receipts, settled, strict=True)
    ]
    return b'{"results":%b}' % _encode(results)
