"""`PresencePort` within one process: what a hub holds is seen by all of its ports."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from subscriptions.domain.errors import unavailable
from subscriptions.domain.presence import Channel, ClientInfo, Clients
from subscriptions.ports import PresencePage, PresenceStats


class MemoryPresenceHub:
    """What holds presence. `away`: it cannot be asked. Who waits for what is written waits for `writes`."""

    def __init__(self) -> None:
        self.away = False
        self.writes = asyncio.Event()
        self.writes.set()
        self.waiting = 0
        self.shown: list[Clients] = []
        self.ports: list[MemoryPresence] = []

    def open(self, topic: str, process: str, clients: Clients) -> MemoryPresence:
        return MemoryPresence(self, process, clients)

    def lose(self, port: MemoryPresence) -> None:
        """It died; the others see it at once."""
        self.shown.remove(port.clients)
        self.ports.remove(port)
        for other in self.ports:
            other.gone[port.process] = port.clients
            other.newly_gone.put_nowait(port.process)

    async def cut(self) -> None:
        """Everybody is cut off, and comes back."""


class MemoryPresence:
    """Implements `PresencePort`; made by `MemoryPresenceHub.open`."""

    def __init__(self, hub: MemoryPresenceHub, process: str, clients: Clients) -> None:
        self._hub = hub
        self.process = process
        self.clients = clients
        self.gone: dict[str, Clients] = {}
        self.newly_gone: asyncio.Queue[str] = asyncio.Queue()
        self._doubted = False
        self._tried = asyncio.Event()

    @property
    def connected(self) -> bool:
        return self in self._hub.ports and not self._hub.away

    async def run(self) -> None:
        self._hub.shown.append(self.clients)
        self._hub.ports.append(self)
        self._tried.set()
        try:
            await asyncio.Event().wait()
        finally:
            self._hub.lose(self)

    def changed(self, channel: Channel, client: ClientInfo) -> None:
        """The hub sees the clients themselves."""

    async def put_all(self) -> None:
        self._hub.waiting += 1
        await self._hub.writes.wait()

    async def opened(self) -> None:
        await self._tried.wait()

    async def lost(self) -> str:
        return await self.newly_gone.get()

    async def lost_clients(
        self, process: str, channels: Sequence[Channel], limit: int
    ) -> dict[Channel, list[ClientInfo]]:
        clients = self.gone[process]
        return {channel: list(clients.of(channel).values())[:limit] for channel in channels}

    async def doubt(self, process: str) -> None:
        for port in self._hub.ports:
            if port.process == process:
                port._doubted = True

    def doubted(self) -> bool:
        doubted, self._doubted = self._doubted, False
        return doubted

    async def page(self, channel: Channel, after: str, limit: int) -> PresencePage:
        found = sorted(client for client in self._all(channel) if client.id > after)
        return PresencePage(found[:limit], len(found) > limit, self._complete)

    async def stats(self, channel: Channel) -> PresenceStats:
        found = self._all(channel)
        return PresenceStats(len(found), len({client.counts_as for client in found}), self._complete)

    async def remove(self) -> None:
        """It does not run, so nothing is left of it."""

    @property
    def _complete(self) -> bool:
        return not any(clients.hides for clients in self._hub.shown)

    def _all(self, channel: Channel) -> list[ClientInfo]:
        if not self.connected:
            raise unavailable("away")
        return [client for clients in self._hub.shown for client in clients.of(channel).values()]
