"""`PresencePort` within one process: what a hub holds is seen by all of its ports."""

from __future__ import annotations

import asyncio

from subscriptions.domain.errors import unavailable
from subscriptions.domain.presence import Channel, ClientInfo, Clients
from subscriptions.ports import PresencePage, PresenceStats


class MemoryPresenceHub:
    """What holds presence. `away`: it cannot be asked."""

    def __init__(self) -> None:
        self.away = False
        self.shown: list[Clients] = []

    def open(self, topic: str, clients: Clients) -> MemoryPresence:
        return MemoryPresence(self, clients)

    async def cut(self) -> None:
        """Everybody is cut off, and comes back."""


class MemoryPresence:
    """Implements `PresencePort`; made by `MemoryPresenceHub.open`."""

    def __init__(self, hub: MemoryPresenceHub, clients: Clients) -> None:
        self._hub = hub
        self._clients = clients

    @property
    def connected(self) -> bool:
        return self._clients in self._hub.shown and not self._hub.away

    async def run(self) -> None:
        self._hub.shown.append(self._clients)
        await asyncio.Event().wait()

    def changed(self, channel: Channel, client: ClientInfo) -> None:
        """The hub sees the clients themselves."""

    async def page(self, channel: Channel, after: str, limit: int) -> PresencePage:
        found = sorted(client for client in self._all(channel) if client.id > after)
        return PresencePage(found[:limit], len(found) > limit, self._complete)

    async def stats(self, channel: Channel) -> PresenceStats:
        found = self._all(channel)
        return PresenceStats(len(found), len({client.counts_as for client in found}), self._complete)

    async def remove(self) -> None:
        self._hub.shown.remove(self._clients)

    @property
    def _complete(self) -> bool:
        return not any(clients.hides for clients in self._hub.shown)

    def _all(self, channel: Channel) -> list[ClientInfo]:
        if not self.connected:
            raise unavailable("away")
        return [client for clients in self._hub.shown for client in clients.of(channel).values()]
