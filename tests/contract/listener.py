"""One process's end of the bus, for tests of it."""

from __future__ import annotations

import asyncio
import os

from cache.bus import RedisBus
from tests.support import eventually


class Listener:
    """`heard` is what came; `missed` how often it was told that something may have been missed."""

    def __init__(self, url: str, topic: str | None = None) -> None:
        topic = topic or _topic_of_this_test()
        self.heard: list[bytes] = []
        self.missed = 0
        self.bus = RedisBus(url, topic, self.heard.append, self._count)
        self.task: asyncio.Task[None] = asyncio.create_task(self.bus.run())

    def _count(self) -> None:
        self.missed += 1

    async def connected(self) -> None:
        await eventually(lambda: self.bus.connected)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def _topic_of_this_test() -> str:
    """Tests share one Redis, and what one test published may still be on its way in the next one."""
    return f"gapless:test:{os.environ['PYTEST_CURRENT_TEST'].rsplit(' ', 1)[0]}"
