"""One process's end of presence, for tests of it."""

from __future__ import annotations

import asyncio
import os
import secrets
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from cache.presence import RedisPresence
from subscriptions.domain.presence import Channel, ClientInfo, Clients
from subscriptions.ports import PresencePort
from tests.patience import PATIENCE_S, cancel, eventually

PING_EVERY_S = 0.1
CHANNEL: Channel = ("default", "a.b")

Open = Callable[[str, str, Clients], PresencePort]


def through(url: str, expiry_s: float = PATIENCE_S, beat_s: float = 0.1) -> Open:
    """Opens presence in this Redis. What a process shows does not expire because the machine is busy, and is
    looked after often all the same."""

    def opened(topic: str, process: str, clients: Clients) -> RedisPresence:
        made = RedisPresence(url, topic, process, clients, expiry_s)
        made._beat_s = beat_s
        made._ping_every_s = min(made._ping_every_s, PING_EVERY_S)
        return made

    return opened


def topic_of_this_test() -> str:
    """Tests share one Redis."""
    return f"gapless:test:{os.environ['PYTEST_CURRENT_TEST'].rsplit(' ', 1)[0].replace('/', '.')}"


def client(user: str | None = None) -> ClientInfo:
    return ClientInfo(str(uuid.uuid4()), user, 1_700_000_000_123_456)


class Process:
    """What a process does with its port."""

    def __init__(self, opens: Open) -> None:
        self.clients = Clients()
        self.name = secrets.token_hex(8)
        self.port = opens(topic_of_this_test(), self.name, self.clients)
        self.task = asyncio.create_task(self.port.run())

    async def connected(self) -> None:
        await eventually(lambda: self.port.connected or self.task.done())
        assert not self.task.done(), self.task.exception()

    def join(self, joining: Iterable[ClientInfo], channel: Channel = CHANNEL) -> None:
        for each in joining:
            if self.clients.join(channel, each):
                self.port.changed(channel, each)

    def leave(self, leaving: Iterable[ClientInfo], channel: Channel = CHANNEL) -> None:
        for each in leaving:
            if self.clients.leave(channel, each):
                self.port.changed(channel, each)

    async def all(self, limit: int = 1000, channel: Channel = CHANNEL) -> list[ClientInfo]:
        """All pages."""
        found: list[ClientInfo] = []
        while True:
            page = await self.port.page(channel, found[-1].id if found else "", limit)
            assert len(page.clients) == limit if page.has_more else len(page.clients) <= limit
            found += page.clients
            if not page.has_more:
                return found

    async def ids(self) -> set[str]:
        return {each.id for each in await self.all()}

    async def kill(self) -> None:
        """It dies: nothing is taken away."""
        await cancel(self.task)

    async def stop(self) -> None:
        await self.kill()
        await self.port.remove()


@asynccontextmanager
async def pair(opens: Open) -> AsyncIterator[tuple[Process, Process]]:
    """Two processes, connected."""
    both = Process(opens), Process(opens)
    for process in both:
        await process.connected()
    yield both
    for process in both:
        await process.stop()
