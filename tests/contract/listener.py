"""One process's end of the bus, for tests of it."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable

from cache.bus import RedisBus
from subscriptions.engine.exchange import OpenBus
from subscriptions.ports import HintBus
from tests.patience import cancel, eventually


class Listener:
    """`heard` is what came; `missed` how often it was told that something may have been missed. `bus`: the
    URL of a Redis, or what opens a bus."""

    def __init__(self, bus: str | OpenBus, topic: str | None = None) -> None:
        self.heard: list[bytes] = []
        self.missed = 0
        self.node = secrets.token_hex(8)
        open_bus = through(bus) if isinstance(bus, str) else bus
        self.bus = open_bus(topic or topic_of_this_test(), self.node, self.heard.append, self._count)
        self.task: asyncio.Task[None] = asyncio.create_task(self.bus.run())

    def _count(self) -> None:
        self.missed += 1

    async def connected(self) -> None:
        await eventually(lambda: self.bus.connected)

    async def stop(self) -> None:
        await cancel(self.task)


async def heard_again(sender: Listener, listener: Listener) -> None:
    """Wait until what the one sends reaches the other, which may be itself. What was lost is sent again."""

    def look() -> bool:
        sender.bus.send(b"again")
        return b"again" in listener.heard

    listener.heard.clear()
    await eventually(look)


def through(url: str) -> OpenBus:
    """Opens buses through this Redis."""

    def opened(topic: str, node: str, heard: Callable[[bytes], None], missed: Callable[[], None]) -> HintBus:
        return RedisBus(url, topic, node, heard, missed)

    return opened


def topic_of_this_test() -> str:
    """Tests share one Redis, and what one test published may still be on its way in the next one."""
    return f"gapless:test:{os.environ['PYTEST_CURRENT_TEST'].rsplit(' ', 1)[0]}"
