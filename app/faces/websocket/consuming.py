"""One member of a durable subscription, whose client is connected over WebSocket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.faces.acks import Acks
from app.faces.deliveries import MemberDependencies, MemberQuery, stream_member
from app.faces.websocket import codes
from app.faces.websocket.publications import ended, member_frames
from app.faces.websocket.reader import Client
from app.message import limits
from app.message.refusals import decode_flat
from app.message.settlement import DEFAULT_PREFETCH, MAX_PREFETCH, Ack
from subscriptions.domain.delivery import Loss
from subscriptions.domain.errors import GaplessError
from subscriptions.domain.goodbye import Goodbye
from subscriptions.domain.names import check_channel
from subscriptions.engine.durable.member import Member
from subscriptions.engine.gate import Gate
from subscriptions.engine.live.live_subscription import HistoryChanged

logger = logging.getLogger("gapless.http")


class ConsumeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Of which subscription deliveries are pushed, at most how many of them are unsettled, and whether they
    are settled when they are handed out."""

    subscription: limits.Name
    prefetch: Annotated[int, Meta(ge=1, le=MAX_PREFETCH)] | UnsetType | None = UNSET
    ack: Ack | UnsetType | None = UNSET


class UnconsumeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Of which subscription deliveries are not pushed any more."""

    subscription: limits.Name


_decode_consume: Final = msgspec.json.Decoder(ConsumeRequest)
_decode_unconsume: Final = msgspec.json.Decoder(UnconsumeRequest)


@dataclass(frozen=True, slots=True)
class Consume:
    """A stream of the deliveries of a subscription, at most `prefetch` of them unsettled."""

    subscription: str
    prefetch: int
    auto: bool


def parse_consume(body: bytes) -> Consume:
    """What the query of `consume` says, as a body."""
    asked = decode_flat(_decode_consume, body)
    name = check_channel(asked.subscription, "subscription")
    return Consume(name, asked.prefetch or DEFAULT_PREFETCH, asked.ack == "auto")


def parse_unconsume(body: bytes) -> str:
    """The name of a subscription."""
    return check_channel(decode_flat(_decode_unconsume, body).subscription, "subscription")


@dataclass(frozen=True, slots=True)
class Queues:
    """What the members of a connection use of the service."""

    parts: MemberDependencies
    acks: Acks
    gate: Gate


class Consuming:
    """One member, from its opening to its end. It is one task, which `run` runs."""

    __slots__ = (
        "_asked",
        "_client",
        "_forget",
        "_is_ending",
        "_is_settling",
        "_is_stopped",
        "_member",
        "_opened",
        "_parts",
        "_settled",
        "subscription",
        "task",
    )

    def __init__(
        self,
        asked: Consume,
        client: Client,
        parts: MemberDependencies,
        opened: Callable[[], None],
        settled: Callable[[], Awaitable[None]],
        forget: Callable[[Consuming], None],
    ) -> None:
        self.task: asyncio.Task[None] | None = None
        self.subscription = asked.subscription
        self._asked = asked
        self._client = client
        self._parts = parts
        self._opened = opened
        self._settled = settled
        self._forget = forget
        self._member: Member | None = None
        self._is_ending = False
        self._is_settling = False
        self._is_stopped = False

    def __repr__(self) -> str:
        return f"Consuming({self.subscription})"

    async def run(self, namespace: str, refused: Callable[[GaplessError], None]) -> None:
        """Open the member, or report to `refused` why not, and push its deliveries until it ends or this is
        cancelled. Its leases end then, after what the client settled before has been settled."""
        asked = self._asked
        query = MemberQuery(namespace, asked.subscription, asked.prefetch, asked.auto, None)
        try:
            await stream_member(self._parts, query, self)
        except GaplessError as error:
            refused(error)
        except Exception:
            logger.exception("a member could not be opened")
            self._client.close(codes.SERVER_ERROR)

    def stop(self, reason: Goodbye | None = None) -> bool:
        """End it without a word, for a `reason` of the service or as the client wants. Returns whether it
        still writes what the service is settling for it: then its task ends soon. Else nothing of it is
        written any more."""
        self._is_stopped = True
        if self._member is not None:
            if reason is None:
                self._member.depart()
            else:
                self._member.leave(reason)
        # At its end it waits for what is being settled, and must not be interrupted in that.
        if self.task is not None and not self._is_ending and not self._is_settling:
            self.task.cancel()
        return self._is_settling

    # What a member asks of its face.

    async def opened(self, member: Member) -> None:
        self._member = member
        member.count_with(self._client.queue)
        self._opened()

    def turn(self) -> AbstractAsyncContextManager[None]:
        return self._settling_turn() if self._asked.auto else self._client.turn()

    @asynccontextmanager
    async def _settling_turn(self) -> AsyncIterator[None]:
        """What is settled in a turn is gone for everybody else, so it is written even if its client said
        meanwhile that it wants no more."""
        async with self._client.turn():
            self._is_settling = True
            try:
                yield
            finally:
                self._is_settling = False
        if self._is_stopped:
            raise ConnectionResetError

    async def deliver(self, losses: Sequence[Loss], deliveries: Sequence[bytes]) -> None:
        self._client.write(member_frames(self._client.framing, self.subscription, losses, deliveries))

    async def beat(self) -> None:
        raise AssertionError("a connection has pings of its own")

    async def end(self, reason: Goodbye, lost: HistoryChanged | None) -> None:
        if reason in codes.GOODBYES:
            self._client.close(codes.GOODBYES[reason])
            return
        # The client may consume again as soon as it is told.
        self._forget(self)
        for text in ended(self.subscription, reason, lost):
            self._client.say(text)

    def failed(self) -> None:
        # It is answered already. Its client connects again, and its leases end with the connection.
        logger.exception("a member failed")
        self._client.close(codes.SERVER_ERROR)

    async def left(self) -> None:
        self._is_ending = True
        await self._settled()
