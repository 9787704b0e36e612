"""`HintBus` within one process: what one bus sends is heard by all of its topic, itself included."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from subscriptions.domain.errors import unavailable

MAX_QUEUED = 1000
LOOK_S = 0.2
"""How late a bus knows who else listens, as a real one does that asks now and then."""


class MemoryHub:
    """What carries hints between buses."""

    def __init__(self) -> None:
        self.joined: list[MemoryBus] = []

    def open(
        self, topic: str, node: str, heard: Callable[[bytes], None], maybe_missed: Callable[[], None]
    ) -> MemoryBus:
        return MemoryBus(self, topic, node, heard, maybe_missed)

    def listeners(self, topic: str) -> list[MemoryBus]:
        return [bus for bus in self.joined if bus.topic == topic]

    def changed(self) -> None:
        """Somebody joined or left."""
        for bus in self.joined:
            asyncio.get_running_loop().call_later(LOOK_S, bus.look)

    async def cut(self) -> None:
        """Everybody is thrown out, and joins again."""
        for bus in self.joined:
            bus.rejoin()


class MemoryBus:
    """Implements `HintBus`; made by `MemoryHub.open`."""

    def __init__(
        self,
        hub: MemoryHub,
        topic: str,
        node: str,
        heard: Callable[[bytes], None],
        maybe_missed: Callable[[], None],
    ) -> None:
        self.topic = topic
        self.node = node
        self.heard = heard
        self._hub = hub
        self._maybe_missed = maybe_missed
        self._queue: deque[bytes] = deque(maxlen=MAX_QUEUED)
        self._arrived = asyncio.Event()
        self.alone = False

    @property
    def connected(self) -> bool:
        return self in self._hub.joined

    async def run(self) -> None:
        self._hub.joined.append(self)
        self._hub.changed()
        self._maybe_missed()
        try:
            while True:
                while self._queue:
                    self._carry(self._queue.popleft())
                self._arrived.clear()
                await self._arrived.wait()
        finally:
            self._hub.joined.remove(self)
            self.alone = False
            self._hub.changed()

    def send(self, payload: bytes) -> None:
        self._queue.append(payload)
        self._arrived.set()

    async def send_to(self, node: str, make: Callable[[], bytes]) -> bool:
        if not self.connected:
            raise unavailable("not connected")
        while self._queue:
            await asyncio.sleep(0)
        others = [bus for bus in self._hub.listeners(self.topic) if bus.node == node]
        if not others:
            return False
        payload = make()
        for bus in others:
            bus.heard(payload)
        return True

    def look(self) -> None:
        """Ask who else listens."""
        self.alone = self._hub.listeners(self.topic) == [self]

    def rejoin(self) -> None:
        """What was about to be sent is lost, and what others sent may be."""
        self._queue.clear()
        self._maybe_missed()

    def _carry(self, payload: bytes) -> None:
        for bus in self._hub.listeners(self.topic):
            bus.heard(payload)
