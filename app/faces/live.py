"""The life of a live reader, for every face: it is opened, joins its channels, follows them, and leaves."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from app.metrics.registry import CUT_OFF, STREAMS
from subscriptions.domain.goodbye import Goodbye
from subscriptions.domain.presence import ClientInfo
from subscriptions.domain.principal import Lifetime
from subscriptions.domain.selection import Selection
from subscriptions.engine.entry import Wire
from subscriptions.engine.live.engine import LiveEngine
from subscriptions.engine.live.live_subscription import Event, LiveSubscription
from subscriptions.engine.live.starts import Start
from subscriptions.engine.presence import Presence, PresenceWire
from subscriptions.ports import ReadPort


@dataclass(frozen=True, slots=True)
class LiveDependencies:
    """What live readers use of the service."""

    live: LiveEngine
    read: ReadPort
    presence: Presence


@dataclass(frozen=True, slots=True)
class LiveQuery:
    """What a reader wants: what it reads and from where on, seconds of silence before a heartbeat, and how
    messages are written. With `joins` it is told who joins and leaves its channels."""

    selection: Selection
    start: Start
    heartbeat_s: float
    messages: Wire
    client: ClientInfo
    joins: PresenceWire | None
    lifetime: Lifetime = field(default_factory=Lifetime)
    """That of the credential with which it was asked for, unless its connection watches it."""


class LiveFace(Protocol):
    """How a face writes to the client of one reader. Each method that waits may raise ConnectionResetError
    when the client is gone, and then the reader leaves."""

    async def opened(self, subscription: LiveSubscription) -> None:
        """It is open. Its events come once this returns."""

    def turn(self) -> AbstractAsyncContextManager[None]:
        """Enters once the client has taken what was written before. Nothing is built for it until then."""

    async def say(self, said: Event) -> str | None:
        """Writes an event. Returns why the reader ends with it, as metrics name it, or None: it goes on."""

    def write(self, chunk: bytes) -> bool:
        """Writes a chunk at once and returns True, or writes nothing and returns False. It is called between
        two turns."""

    def failed(self) -> None:
        """A defect is being handled: logs it. The client was answered, so its connection has to end."""

    def left(self) -> None:
        """The reader has left. Nothing more is written."""


async def stream_live(parts: LiveDependencies, query: LiveQuery, face: LiveFace) -> None:
    """Opens a live subscription and writes its events until it ends, its client leaves, or this is cancelled.
    Raises GaplessError if it cannot be opened."""
    live, presence = parts.live, parts.presence
    subscription = await live.subscribe(query.selection, query.start, query.messages, query.heartbeat_s)
    presence.join(query.client, subscription, query.joins)
    STREAMS.inc()
    try:
        await face.opened(subscription)
        subscription.write = face.write
        with query.lifetime.watched(partial(subscription.dismiss, Goodbye.CREDENTIAL_EXPIRED)):
            await _write_events(subscription, parts.read, face)
    except ConnectionResetError:
        pass
    except Exception:  # noqa: BLE001 — the face logs it, with what it knows of the request
        face.failed()
    finally:
        STREAMS.dec()
        subscription.write = None
        face.left()
        presence.leave(query.client, subscription)
        live.unsubscribe(subscription)


async def _write_events(subscription: LiveSubscription, read: ReadPort, face: LiveFace) -> None:
    while True:
        if not subscription.rested:
            # A replay of history from memory must not delay other readers.
            await asyncio.sleep(0)
        subscription.rested = False
        await subscription.news()
        async with face.turn():
            for said in await subscription.take(read):
                subscription.spoke_at = time.monotonic()
                if (why := await face.say(said)) is not None:
                    CUT_OFF.labels(why).inc()
                    return
