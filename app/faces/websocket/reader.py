"""One subscription of a WebSocket client: a live subscription, written as publications."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from app.faces.live import LiveDependencies, LiveQuery, stream_live
from app.faces.websocket import codes
from app.faces.websocket.codes import Ending
from app.faces.websocket.framing import Framing
from app.faces.websocket.presence import NamedPresencePushes, PresencePushes
from app.faces.websocket.publications import IdWire, SeqWire, event
from subscriptions.domain.errors import GaplessError
from subscriptions.domain.goodbye import Goodbye
from subscriptions.domain.presence import ClientInfo
from subscriptions.domain.selection import Selection
from subscriptions.engine.live.feed import ChannelFeed
from subscriptions.engine.live.live_subscription import (
    Chunk,
    Ephemeral,
    Event,
    Gap,
    Heartbeat,
    LiveSubscription,
)
from subscriptions.engine.live.starts import Start
from subscriptions.engine.presence import PresenceWire

logger = logging.getLogger("gapless.http")

NEVER: Final = float("inf")


class Client(Protocol):
    """The connection of a client, as its subscriptions see it."""

    @property
    def framing(self) -> Framing:
        """How lines are written to it."""

    def write_chunk(self, frames: bytes) -> bool:
        """Writes whole frames at once, behind all answers, and returns True. If bytes still wait, it only
        returns False."""

    def turn(self) -> AbstractAsyncContextManager[None]:
        """One writer at a time builds frames: enters once the client has taken all that was written. Raises
        ConnectionResetError if it is gone."""

    def write(self, frames: bytes) -> None:
        """Writes whole frames, behind all answers, in a turn."""

    def queue(self, size_bytes: int) -> None:
        """Counts so many bytes more (or fewer) that wait for a turn."""

    def say(self, text: bytes) -> None:
        """Writes a short reply or push."""

    def close(self, ending: Ending) -> None:
        """Ends the connection."""

    def unsubscribed(self, channel: str, ending: Ending) -> None:
        """The server ended a subscription: tells the client."""


class Reader:
    """One subscription, from its opening to its end. It is one task, which `follow` runs."""

    __slots__ = ("_by_id", "_channel_id", "_client", "_opened", "_subscription", "channel", "task")

    def __init__(
        self,
        channel: str,
        by_id: bool,
        client: Client,
        opened: Callable[[LiveSubscription], Awaitable[None]],
    ) -> None:
        """`opened` gets the subscription once it is open, and answers the client."""
        self.channel = channel
        self.task: asyncio.Task[None] | None = None
        self._by_id = by_id
        self._client = client
        self._opened = opened
        self._subscription: LiveSubscription | None = None
        self._channel_id = 0

    def __repr__(self) -> str:
        return f"Reader({self.channel}, {self._subscription!r})"

    async def follow(
        self,
        parts: LiveDependencies,
        selection: Selection,
        start: Start,
        info: ClientInfo,
        refused: Callable[[GaplessError], None],
        *,
        join_leave: bool,
    ) -> None:
        """Open the live subscription, or report to `refused` why not, and write its events until it ends or
        this is cancelled."""
        framing = self._client.framing
        messages = IdWire(self.channel, framing) if self._by_id else SeqWire(framing)
        joins: PresenceWire = PresencePushes(framing)
        if self._by_id:
            joins = NamedPresencePushes(self.channel, framing)
        query = LiveQuery(selection, start, NEVER, messages, info, joins if join_leave else None)
        try:
            await stream_live(parts, query, self)
        except GaplessError as error:
            refused(error)
        except Exception:
            logger.exception("a subscription could not be opened")
            self._client.close(codes.SERVER_ERROR)

    def stop(self) -> None:
        """End it without a word. Nothing of it is written any more."""
        if self._subscription is not None:
            self._subscription.write = None
        if self.task is not None:
            self.task.cancel()

    # What a live reader asks of its face.

    async def opened(self, subscription: LiveSubscription) -> None:
        self._subscription = subscription
        if subscription.opened is not None:
            self._channel_id = subscription.opened.epoch.channel_id
        await self._opened(subscription)

    def turn(self) -> AbstractAsyncContextManager[None]:
        return self._client.turn()

    async def say(self, said: Event) -> str | None:
        ending = self._ending(said)
        if ending is None:
            self._say(said)
            return None
        self._end(said, ending)
        return ending.reason.replace(" ", "_")

    def write(self, chunk: bytes) -> bool:
        return not self._is_another_channel() and self._client.write_chunk(chunk)

    def failed(self) -> None:
        # The client connects again and goes on.
        logger.exception("a subscription failed")
        self._client.close(codes.SERVER_ERROR)

    def left(self) -> None:
        """Nothing is left to do: the connection goes on."""

    # The rest.

    def _ending(self, said: Event) -> Ending | None:
        """Whether the subscription ends with this event."""
        assert self._subscription is not None, "it is open"
        if isinstance(said, Goodbye):
            return codes.GOODBYES.get(said, codes.INSUFFICIENT_STATE)
        is_untold = isinstance(said, Gap) and not self._by_id and not _is_told(said, self._subscription)
        return codes.INSUFFICIENT_STATE if is_untold or self._is_another_channel() else None

    def _end(self, said: Event, ending: Ending) -> None:
        if isinstance(said, Goodbye) and said in codes.GOODBYES:
            self._client.close(ending)
        else:
            self._client.unsubscribed(self.channel, ending)

    def _say(self, said: Event) -> None:
        match said:
            case Chunk(data):
                self._client.write(data)
            case Heartbeat() | Goodbye():
                raise AssertionError("a connection has pings of its own, and a goodbye is an ending")
            case Ephemeral():
                self._client.write(self._client.framing.frame(event(self.channel, said)))
            case _:
                self._client.say(event(self.channel, said))

    def _is_another_channel(self) -> bool:
        """Whether the channel was deleted and created again: its seqs begin again, so the client has to.
        Ids go on."""
        feed = self._subscription.feed if self._subscription is not None else None
        if self._by_id or not isinstance(feed, ChannelFeed):
            return False
        self._channel_id = self._channel_id or feed.channel_id
        return self._channel_id != feed.channel_id


def _is_told(gap: Gap, subscription: LiveSubscription) -> bool:
    """Whether the reply to the subscribe covers this gap: it said that messages are gone right before the
    place where it goes on. If not, the client has to subscribe again to learn of it. A subscription in the
    order of ids has gaps at any time, each with a push."""
    opened = subscription.opened
    assert opened is not None, "every start of a session has one"
    return not opened.holds and gap.first_seq == opened.seq + 1
