"""Kills parts of the running service with -9, one after the other, and sees each one come back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from load.children import kill, tree
from load.history import History
from load.server import Server

PATIENCE = 60.0
"""What was killed must be back within this many seconds."""

ORDER = ("redis", "service", "import", "postgres")


@dataclass(slots=True)
class Storm:
    """Kills in `ORDER`, `rounds` times over, spread over the run by how far it has come (0 to 1).

    `kill_import` kills the program that publishes; its owner starts it again.
    """

    server: Server
    history: History
    progress: Callable[[], float]
    kill_import: Callable[[], None]
    rounds: int = 1
    say: Callable[[str], None] = print
    log: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Kill, wait for the return, go on. Raises RuntimeError when something stays away."""
        steps = [name for _ in range(self.rounds) for name in ORDER]
        for number, name in enumerate(steps, 1):
            due = number / (len(steps) + 1)
            while self.progress() < due:
                await asyncio.sleep(0.02)
            self.history.fault(f"{name} killed", True)
            started = time.monotonic()
            at = f"{100 * self.progress():.0f} %"
            await self._hit(name)
            self.history.fault(f"{name} killed", False)
            line = f"{name} killed with -9 at {at}, back after {time.monotonic() - started:.1f} s"
            self.log.append(line)
            self.say(line)

    async def _hit(self, name: str) -> None:
        if name == "redis":
            await self._kill_and_wait("redis", self.server.redis, lambda pid: [pid])
        elif name == "postgres":
            await self._postgres()
        elif name == "service":
            await self._service()
        else:
            self.kill_import()

    async def _postgres(self) -> None:
        # The backends go with the postmaster, as they would with the machine.
        await self._kill_and_wait("postgres", self.server.postgres, tree)
        await self.server.wait_ready(PATIENCE)

    async def _service(self) -> None:
        self.server.kill()
        self.server.start()
        await self.server.wait_ready(PATIENCE)

    async def _kill_and_wait(
        self, name: str, find: Callable[[], int | None], family: Callable[[int], list[int]]
    ) -> None:
        old = find()
        if old is None:
            raise RuntimeError(f"{name} is not running")
        kill(family(old))
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            new = find()
            if new is not None and new != old and len(tree(new)) >= 1:
                return
        raise RuntimeError(f"{name} did not come back within {PATIENCE:.0f} s")
