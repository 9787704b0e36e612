"""The life of a member, for every face: it is opened, gets deliveries, and its leases end with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from app.message.deliveries import encode_delivery
from app.message.receipts import ReceiptCodec
from app.metrics.registry import CUT_OFF, DELIVERED, SETTLED
from subscriptions.domain.delivery import Delivery, Loss, Receipt
from subscriptions.domain.errors import GaplessError
from subscriptions.domain.goodbye import Goodbye
from subscriptions.domain.principal import Lifetime
from subscriptions.domain.selection import select
from subscriptions.engine.durable.consumers import Consumers
from subscriptions.engine.durable.member import Member
from subscriptions.engine.live.live_subscription import HistoryChanged
from subscriptions.ports import ReadPort

_EVERYTHING: Final = select("default", patterns=(">",))


@dataclass(frozen=True, slots=True)
class MemberDependencies:
    """What members use of the service."""

    consumers: Consumers
    receipts: ReceiptCodec
    read: ReadPort


@dataclass(frozen=True, slots=True)
class MemberQuery:
    """What a member wants: deliveries of a subscription, at most `prefetch` of them unsettled. With
    `settles`, each is settled when it is handed out. `silence_s`: seconds without anything to write after
    which there is a heartbeat; None: never."""

    namespace: str
    subscription: str
    prefetch: int
    settles: bool
    silence_s: float | None
    lifetime: Lifetime = field(default_factory=Lifetime)
    """That of the credential with which it was asked for, unless its connection watches it."""


class MemberFace(Protocol):
    """How a face writes to the client of a member. Each method that waits may raise ConnectionResetError when
    the client is gone or cut off, and then the member leaves."""

    async def opened(self, member: Member) -> None:
        """It is open. Its deliveries come once this returns."""

    def turn(self) -> AbstractAsyncContextManager[None]:
        """Enters once the client has taken what was written before. Nothing is built for it until then."""

    async def deliver(self, losses: Sequence[Loss], deliveries: Sequence[bytes]) -> None:
        """Gaps that retention made, and deliveries as JSON, which come after them."""

    async def beat(self) -> None:
        """There was nothing to say for `silence_s`."""

    async def end(self, reason: Goodbye, lost: HistoryChanged | None) -> None:
        """The server ends the member. `lost`: messages that it may have got and the log does not have."""

    def failed(self) -> None:
        """A defect is being handled: logs it. The client was answered, so its connection has to end."""

    async def left(self) -> None:
        """It gets nothing more. Its leases end once this returns."""


async def stream_member(parts: MemberDependencies, query: MemberQuery, face: MemberFace) -> None:
    """Opens a member and writes its deliveries until the server ends it, its client leaves, or this is
    cancelled. Raises GaplessError if it cannot be opened."""
    consumers = parts.consumers
    member = await consumers.open(query.namespace, query.subscription, query.prefetch)
    hand = settling(consumers) if query.settles else leasing(parts.receipts)
    try:
        await face.opened(member)
        with query.lifetime.watched(partial(member.leave, Goodbye.CREDENTIAL_EXPIRED)):
            await _write_deliveries(member, face, hand, parts.read, query.silence_s)
    except ConnectionResetError:
        pass
    except Exception:  # noqa: BLE001 — the face logs it, with what it knows of the request
        face.failed()
    finally:
        member.depart()
        try:
            await face.left()
        finally:
            consumers.close(member)


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


async def _write_deliveries(
    member: Member, face: MemberFace, hand: Handing, read: ReadPort, silence_s: float | None
) -> None:
    while True:
        has_news = await member.news(silence_s)
        async with face.turn():
            deliveries, losses = member.take(), list(member.losses)
            if deliveries or losses:
                handed = await hand(member, deliveries)
                DELIVERED.inc(len(handed))
                if handed or losses:
                    await face.deliver(losses, handed)
                member.reported(losses)
            elif not has_news:
                await face.beat()
        if member.goodbye is not None:
            CUT_OFF.labels(member.goodbye.value).inc()
            await face.end(member.goodbye, await _lost(member, read))
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
