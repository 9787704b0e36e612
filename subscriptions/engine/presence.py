"""Presence in one process: who of its clients is on which channel, and what its readers are told of all.

Events are lossy: each is written at once or not at all, so nobody's event is held in memory. The page that
the port gives is the truth.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

from subscriptions.domain.errors import GaplessError, unavailable
from subscriptions.domain.presence import (
    MAX_CHANGES,
    MAX_CROWD,
    Announcer,
    Change,
    Channel,
    ClientInfo,
    Clients,
    Count,
)
from subscriptions.engine.exchange import Exchange
from subscriptions.engine.hints import PresenceHint
from subscriptions.engine.live.engine import LiveEngine
from subscriptions.engine.live.live_subscription import LiveSubscription
from subscriptions.engine.single_flight import SingleFlights
from subscriptions.ports import Clock, PresencePage, PresencePort, PresenceStats

log = logging.getLogger(__name__)

T = TypeVar("T")

TICK_S = 0.1
"""Joins and leaves are gathered for this long."""
AT_ONCE = 50
"""Readers that are written to in one go."""
REST = 3.0
"""The pause after each go, as a multiple of the time that it took: so messages come through."""
MAX_HINTED = 2000
"""Joins and leaves, and channels, in the hint of one tick. What does not fit waits for the next one."""
MAX_WAITING = 20_000
"""Channels whose joins and leaves wait to be hinted; those of further channels are dropped."""
MAX_LOOKS = 1000
"""Hidden clients for which a place is looked for in each tick. That takes about a millisecond."""
MAX_ORIGINS = 256
LOST_AT_ONCE = 16
"""Channels about which is asked together which clients a lost process had."""
OPEN_TIMEOUT_S = 5.0
"""The first questions in a process wait so long until presence can be asked."""
REMOTE_S = 60.0
"""The number of clients that another process told counts for this long."""

OpenPresence = Callable[[str, str, Clients], PresencePort]
"""(identity of the log's history, name of this process, its clients) → a port that shows them beside those of
processes with this identity."""


class PresenceWire(Protocol):
    """How a face writes joins and leaves. Wires of one name write the same."""

    @property
    def name(self) -> str: ...

    @property
    def shared(self) -> bool:
        """Whether many readers have this wire. There are few such wires; the others are without number."""

    def change(self, channel: str, change: Change) -> bytes:
        """A client joined or left."""

    def count(self, channel: str, clients: int) -> bytes:
        """So many clients are there now, and some joined or left."""


class _Audience:
    """The readers of one channel that are told, and what they are told of."""

    __slots__ = ("announcer", "readers", "remote")

    def __init__(self) -> None:
        self.readers: dict[LiveSubscription, tuple[str, PresenceWire]] = {}
        self.announcer = Announcer()
        self.remote: dict[str, tuple[int, float]] = {}

    def hear(self, origin: str, hint: PresenceHint, now: float) -> None:
        """Another process told of its clients."""
        self.remote.pop(origin, None)
        self.remote[origin] = (hint.clients, now)
        if len(self.remote) > MAX_ORIGINS:
            del self.remote[next(iter(self.remote))]
        if not hint.changes or len(hint.changes) > MAX_CHANGES:
            self.announcer.crowd()
        for change in hint.changes[:MAX_CHANGES]:
            self.announcer.add(Change(*change))

    def lose(self, process: str, clients: Sequence[ClientInfo], at_us: int) -> None:
        """Another process died, with these clients."""
        self.remote.pop(process, None)
        if len(clients) > MAX_CROWD:
            self.announcer.crowd()
            return
        for client in clients:
            self.announcer.add(Change(client.id, client.user, False, at_us))

    def elsewhere(self, now: float) -> int:
        """The clients in other processes, as far as they are known."""
        return sum(clients for clients, at in self.remote.values() if now - at < REMOTE_S)


class Presence:
    """Presence of one process. Faces tell it of their subscriptions."""

    def __init__(
        self,
        live: LiveEngine,
        exchange: Exchange,
        open_port: OpenPresence,
        *,
        clock: Clock,
        now_us: Callable[[], int],
    ) -> None:
        self.clients = Clients()
        self.dropped = 0
        """Events that a reader did not take at once, and channels whose events did not fit."""
        self._live = live
        self._exchange = exchange
        self._open_port = open_port
        self._clock = clock
        self._now_us = now_us
        self._port: PresencePort | None = None
        self._opened = asyncio.Event()
        self._open_by: float | None = None
        self._showing: asyncio.Task[None] | None = None
        self._hinting: asyncio.Task[None] | None = None
        self._identity = ""
        self._audiences: dict[Channel, _Audience] = {}
        self._outgoing: dict[Channel, Announcer] = {}
        self._due: set[Channel] = set()
        """The channels of audiences with something to tell."""
        self._pages = SingleFlights(self._read_page)
        self._stats = SingleFlights(self._read_stats)

    def __repr__(self) -> str:
        return f"Presence({self.clients!r}, {len(self._audiences)} audiences, {self._port!r})"

    # --- faces

    def join(self, client: ClientInfo, subscription: LiveSubscription, wire: PresenceWire | None) -> None:
        """A client's subscription began. With a wire it is told who joins and leaves the channels that it
        names."""
        selection = subscription.feed.selection
        for name in selection.names:
            channel = (selection.namespace, name)
            if self.clients.join(channel, client):
                self._changed(channel, client, joined=True)
            if wire is not None:
                self._audiences.setdefault(channel, _Audience()).readers[subscription] = client.id, wire

    def leave(self, client: ClientInfo, subscription: LiveSubscription) -> None:
        """A client's subscription ended."""
        selection = subscription.feed.selection
        for name in selection.names:
            channel = (selection.namespace, name)
            audience = self._audiences.get(channel)
            if audience is not None:
                audience.readers.pop(subscription, None)
                if not audience.readers:
                    del self._audiences[channel]
                    self._due.discard(channel)
            if self.clients.leave(channel, client):
                self._changed(channel, client, joined=False)

    async def page(self, channel: Channel, after: str, limit: int) -> PresencePage:
        """As `PresencePort.page`. Those who ask for the same page share an answer that was read after all of
        them had asked."""
        return await self._pages((channel, after, limit))

    async def stats(self, channel: Channel) -> PresenceStats:
        """As `PresencePort.stats`, shared in the same way."""
        return await self._stats(channel)

    async def _read_page(self, asked: tuple[Channel, str, int]) -> PresencePage:
        return await (await self._connected()).page(*asked)

    async def _read_stats(self, channel: Channel) -> PresenceStats:
        return await (await self._connected()).stats(channel)

    async def _connected(self) -> PresencePort:
        loop = asyncio.get_running_loop()
        if self._open_by is None:
            self._open_by = loop.time() + OPEN_TIMEOUT_S
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._open_by):
                await self._opened.wait()
                assert self._port is not None
                await self._port.opened()
        if self._port is None or not self._port.connected:
            raise unavailable("presence needs Redis, which cannot be reached")
        return self._port

    def _changed(self, channel: Channel, client: ClientInfo, *, joined: bool) -> None:
        if self._port is not None:
            self._port.changed(channel, client)
        change = Change(client.id, client.user, joined, self._now_us())
        audience = self._audiences.get(channel)
        if audience is not None:
            audience.announcer.add(change)
            self._due.add(channel)
        self._hint(channel, change)

    def _hint(self, channel: Channel, change: Change) -> None:
        announcer = self._outgoing.get(channel)
        if announcer is None:
            if len(self._outgoing) >= MAX_WAITING:
                self.dropped += 1
                return
            announcer = self._outgoing[channel] = Announcer()
        announcer.add(change)

    # --- the loop

    async def run(self) -> None:
        """Show the clients of this process, and tell its readers of all, until cancelled."""
        try:
            while True:
                await asyncio.sleep(TICK_S)
                self._follow_history()
                for channel, client in self.clients.fill(MAX_LOOKS):
                    self._changed(channel, client, joined=True)
                if self._port is not None and self._port.doubted():
                    self._hint_all()
                self._begin_to_hint()
                await self._tell_readers()
        finally:
            for task in (self._showing, self._hinting):
                if task is not None:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

    async def stop(self) -> None:
        """Take the clients of this process away. It does not run any more."""
        if self._port is not None:
            await self._port.remove()

    def _follow_history(self) -> None:
        """Another history has presence of its own, as it has hints of its own."""
        if self._showing is not None and self._showing.done():
            self._showing.result()
        identity = self._live.identity
        if identity == self._identity or not (self._live.epoch and self._live.life):
            return
        if self._showing is not None:
            self._showing.cancel()
        self._identity = identity
        self._port = self._open_port(identity, self._exchange.node, self.clients)
        self._opened.set()
        self._showing = asyncio.create_task(self._show(self._port))

    async def _show(self, port: PresencePort) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(port.run())
            tasks.create_task(self._tell_of_lost(port))

    async def _tell_of_lost(self, port: PresencePort) -> None:
        """Tell the readers of this process that the clients of processes that died have left."""
        while True:
            process = await port.lost()
            channels = list(self._audiences)
            for first in range(0, len(channels), LOST_AT_ONCE):
                some = channels[first : first + LOST_AT_ONCE]
                left = await _patiently(partial(port.lost_clients, process, some, MAX_CROWD + 1))
                for channel, clients in left.items():
                    audience = self._audiences.get(channel)
                    if audience is not None:
                        audience.lose(process, clients, self._now_us())
                        self._due.add(channel)
            await _patiently(partial(port.doubt, process))

    def _hint_all(self) -> None:
        """Others said that the clients of this process have left. Say that they are here."""
        for channel in self.clients.channels:
            for client in self.clients.of(channel).values():
                self._hint(channel, Change(client.id, client.user, True, self._now_us()))

    async def _tell_readers(self) -> None:
        due = [channel for channel in self._due if channel in self._audiences]
        # A small channel does not wait for a large one.
        for channel in sorted(due, key=lambda channel: len(self._audiences[channel].readers)):
            audience = self._audiences.get(channel)
            if audience is not None:
                await self._tell(channel, audience)

    def _begin_to_hint(self) -> None:
        """Readers of this process do not wait for Redis. What changes meanwhile comes with the next hints."""
        if self._hinting is not None and self._hinting.done():
            self._hinting.result()
            self._hinting = None
        if self._hinting is None and self._outgoing:
            self._hinting = asyncio.create_task(self._hint_others())

    async def _hint_others(self) -> None:
        """Tell the other processes, once the pages say so. A reader that asks for a page after the hint then
        finds the join or leave there."""
        hints = self._hints()
        if hints and self._port is not None and self._port.connected:
            with suppress(GaplessError):
                await self._port.put_all()
        self._exchange.changed_presence(hints)

    def _hints(self) -> list[PresenceHint]:
        now, size = self._clock(), 0
        hints: list[PresenceHint] = []
        for channel, announcer in list(self._outgoing.items()):
            if size >= MAX_HINTED:
                break
            clients = len(self.clients.of(channel))
            audience = self._audiences.get(channel)
            elsewhere = audience.elsewhere(now) if audience is not None else 0
            found = announcer.take(clients + elsewhere, now)
            if found is not None:
                changes = () if isinstance(found, Count) else found
                hints.append(PresenceHint(*channel, clients, list(changes)))
                size += 1 + len(changes)
            if announcer.is_idle(now):
                del self._outgoing[channel]
        return hints

    def hear(self, origin: str, hints: Sequence[PresenceHint]) -> None:
        """Take hints of another process."""
        now = self._clock()
        for hint in hints:
            channel = (hint.namespace, hint.channel)
            audience = self._audiences.get(channel)
            if audience is not None:
                audience.hear(origin, hint, now)
                self._due.add(channel)

    # --- telling readers

    async def _tell(self, channel: Channel, audience: _Audience) -> None:
        now = self._clock()
        known = len(self.clients.of(channel)) + audience.elsewhere(now)
        found = audience.announcer.take(known, now)
        if not audience.announcer.due:
            self._due.discard(channel)
        if isinstance(found, Count):
            await self._write(audience, _Batch(channel[1], (), await self._count(channel, known)))
        elif found:
            await self._write(audience, _Batch(channel[1], found, 0))

    async def _count(self, channel: Channel, known: int) -> int:
        """How many clients are there: as the page would say, or else as far as they are known."""
        try:
            return (await self.stats(channel)).clients
        except GaplessError:
            return known

    async def _write(self, audience: _Audience, batch: _Batch) -> None:
        readers = list(audience.readers.items())
        for first in range(0, len(readers), AT_ONCE):
            began = self._clock()
            for subscription, (client, wire) in readers[first : first + AT_ONCE]:
                data = batch.encoded(wire, client)
                if data and not subscription.write_beside(data) and not subscription.gone:
                    self.dropped += 1
            if first + AT_ONCE < len(readers):
                await asyncio.sleep((self._clock() - began) * REST)


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask again until there is an answer."""
    while True:
        try:
            return await ask()
        except GaplessError:
            await asyncio.sleep(TICK_S)


class _Batch:
    """What readers of a channel are told at once, encoded once for each shared wire. What another wire writes
    is not kept. A client is not told its own change."""

    __slots__ = ("_changes", "_channel", "_clients", "_kept")

    def __init__(self, channel: str, changes: tuple[Change, ...], clients: int) -> None:
        self._channel = channel
        self._changes = changes
        self._clients = clients
        self._kept: dict[str, tuple[dict[str, bytes], bytes]] = {}

    def encoded(self, wire: PresenceWire, client: str) -> bytes:
        """The batch for a reader of this client; empty if there is nothing to tell it."""
        kept = self._kept.get(wire.name)
        if kept is None:
            kept = self._encode(wire)
            if wire.shared:
                self._kept[wire.name] = kept
        frames, whole = kept
        if client not in frames:
            return whole
        return b"".join([frame for other, frame in frames.items() if other != client])

    def _encode(self, wire: PresenceWire) -> tuple[dict[str, bytes], bytes]:
        """The frame of each client's change, and all of them together."""
        changes, channel = self._changes, self._channel
        frames = {change.client: wire.change(channel, change) for change in changes}
        return frames, b"".join(frames.values()) if changes else wire.count(channel, self._clients)
