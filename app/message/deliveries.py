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


def encode_results(receipts: Sequence[str], settled: Sequence[Settled]) -> bytes:
    """The answer to an ack, nack, release or extend: one result per receipt, in the order of the request."""
    return b'{"results":[%b]}' % b",".join(_result(*each) for each in zip(receipts, settled, strict=True))


def _result(receipt: str, settled: Settled) -> bytes:
    rest = b""
    if settled.dead_letter is not None:
        rest = b',"dead_letter":%d' % settled.dead_letter
    if settled.deadline_us is not None:
        rest += b',"deadline":"%b"' % rfc3339(settled.deadline_us)
    return b'{"receipt":%b,"status":"%b"%b}' % (_encode(receipt), settled.status.value.encode(), rest)
