"""Passes on what a member gets, in the form of a face: deliveries, gaps, and why the server ends it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from app.telemetry import CUT_OFF, DELIVERED, SETTLED
from app.wire.deliveries import encode_delivery
from app.wire.receipts import ReceiptCodec
from subscriptions.domain.delivery import Delivery, Loss, Receipt
from subscriptions.domain.errors import GaplessError
from subscriptions.domain.goodbye import Goodbye
from subscriptions.domain.selection import select
from subscriptions.engine.durable.consumers import Consumers
from subscriptions.engine.durable.member import Member
from subscriptions.engine.live.live_subscription import HistoryChanged
from subscriptions.ports import ReadPort

_EVERYTHING: Final = select("default", patterns=(">",))


class DeliveryWire(Protocol):
    """How a face writes to the client of a member. Each method may raise ConnectionResetError when the client
    is gone or cut off."""

    def turn(self) -> AbstractAsyncContextManager[None]:
        """Enters once the client has taken what was written before. Nothing is built for it until then."""

    async def deliver(self, losses: Sequence[Loss], deliveries: Sequence[bytes]) -> None:
        """Gaps that retention made, and deliveries as JSON, which come after them."""

    async def beat(self) -> None:
        """There was nothing to say for as long as `stream_deliveries` was told."""

    async def end(self, reason: Goodbye, lost: HistoryChanged | None) -> None:
        """The server ends the member. `lost`: messages that it may have got and the log does not have."""


Handing = Callable[[Member, list[Delivery]], Awaitable[list[bytes]]]
"""Makes deliveries ready for their client, as JSON. It may leave out some, which are given back."""


def leasing(receipts: ReceiptCodec) -> Handing:
    """The client settles them by their receipts."""

    async def hand(member: Member, deliveries: list[Delivery]) -> list[bytes]:
        return [_encode(member, delivery, receipts) for delivery in deliveries]

    return hand


def settling(consumers: Consumers) -> Handing:
    """They are settled before they are written, so each is handed out at most once."""

    async def hand(member: Member, deliveries: list[Delivery]) -> list[bytes]:
        try:
            settled = await consumers.settle(member.group.subscription, deliveries, member.holder)
        except GaplessError:
            consumers.give_back(member, deliveries)
            # The database is in trouble, so the member rests before it takes them again.
            member.gave_back(len(deliveries))
            return []
        SETTLED.labels("acked").inc(len(settled))
        return [encode_delivery(delivery, None) for delivery in settled]

    return hand


async def stream_deliveries(
    member: Member, wire: DeliveryWire, hand: Handing, read: ReadPort, silence_s: float | None
) -> None:
    """Write what the member gets until the server ends it. `silence_s`: seconds without anything to write
    after which it beats; None: never.

    Raises ConnectionResetError when the client is gone.
    """
    while True:
        has_news = await member.news(silence_s)
        async with wire.turn():
            deliveries, losses = member.take(), list(member.losses)
            if deliveries or losses:
                handed = await hand(member, deliveries)
                DELIVERED.inc(len(handed))
                if handed or losses:
                    await wire.deliver(losses, handed)
                member.told(losses)
            elif not has_news:
                await wire.beat()
        if member.goodbye is not None:
            CUT_OFF.labels(member.goodbye.value).inc()
            await wire.end(member.goodbye, await _lost(member, read))
            return


def _encode(member: Member, delivery: Delivery, receipts: ReceiptCodec) -> bytes:
    receipt = Receipt(member.group.subscription.id, delivery.message.id, delivery.lease, member.holder)
    return encode_delivery(delivery, receipts.encode(receipt))


async def _lost(member: Member, read: ReadPort) -> HistoryChanged | None:
    """The messages that this member got and the log may have lost."""
    if member.goodbye is not Goodbye.HISTORY_CHANGED:
        return None
    try:
        lost = await read.lost(_EVERYTHING, member.seen)
    except GaplessError:
        return None
    return None if lost is None else HistoryChanged(None, lost.first_id, lost.last_id)
