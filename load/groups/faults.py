"""Kills parts of the running service with -9 while members work: a worker, all of it, Redis, Postgres."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from load.children import kill, tree
from load.groups.history import Fault
from load.server import Server

PATIENCE = 60.0
"""What was killed must be back within this many seconds."""

NAMES = ("worker", "service", "redis", "postgres")
DOWN_S = 6.0
"""The whole service stays away for up to this long: longer than messages live in one subscription."""


@dataclass(slots=True)
class Faults:
    """Hits one part after the other, each once before any is hit again."""

    server: Server
    chance: random.Random
    every_s: float
    names: tuple[str, ...] = NAMES
    say: Callable[[str], None] = print
    found: list[Fault] = field(default_factory=list)

    async def run(self, until_ns: int) -> None:
        """Go on until that time; returns when the last hit part is back. Raises RuntimeError if it is not."""
        bag: list[str] = []
        while True:
            pause = self.chance.uniform(0.6, 1.4) * self.every_s
            if time.monotonic_ns() + int(pause * 1e9) > until_ns:
                return
            await asyncio.sleep(pause)
            bag = bag or self.chance.sample(self.names, len(self.names))
            await self._one(bag.pop())

    async def _one(self, name: str) -> None:
        from_ns = time.monotonic_ns()
        await self._hit(name)
        await self.server.wait_ready(PATIENCE)
        to_ns = time.monotonic_ns()
        # Redis carries no leases: its loss excuses nothing.
        self.found.append(Fault(name, from_ns, to_ns, hides=name != "redis"))
        self.say(f"{name} killed with -9, back after {(to_ns - from_ns) / 1e9:.1f} s")

    async def _hit(self, name: str) -> None:
        if name == "worker":
            before = self.workers()
            victim = self.chance.choice(before)
            kill([victim])
            await self._until(lambda: victim not in (now := self.workers()) and len(now) >= len(before))
        elif name == "service":
            self.server.kill()
            await asyncio.sleep(self.chance.choice([0, self.chance.uniform(0, DOWN_S)]))
            self.server.start()
        elif name == "redis":
            old = self.server.redis()
            assert old is not None, "Redis does not run"
            flush(self.server.redis_socket())
            kill([old])
            await self._until(lambda: self.server.redis() not in (None, old))
        else:
            old = self.server.postgres()
            assert old is not None, "Postgres does not run"
            # The backends go with the postmaster, as they would with the machine.
            kill(tree(old))
            await self._until(lambda: self.server.postgres() not in (None, old))

    def workers(self) -> list[int]:
        """The processes that serve: the supervisor's own children among the Python ones."""
        own = self.server.own()
        return [pid for pid in own if pid != own[0]]

    async def _until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            if time.monotonic() > deadline:
                raise RuntimeError(f"not back after {PATIENCE:.0f} s")
            await asyncio.sleep(0.05)


def flush(path: str | None) -> None:
    """FLUSHALL on the Redis that listens there."""
    assert path is not None, "Redis does not listen"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(5)
        connection.connect(path)
        connection.sendall(b"FLUSHALL\r\n")
        connection.recv(64)
