"""Two services with a namespace and two workers each, on one Postgres and one Redis."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import quote

from load.children import kill, tree
from load.server import AWAY, Server
from load.waiting import PATIENCE_S, until

NAMESPACES = ("left", "right")
WORKERS = "2"


class Fault(StrEnum):
    """The parts that are killed with SIGKILL. The other parts end because their parent is gone."""

    SERVICES = "the services"
    POSTGRES = "the services and Postgres"
    EVERYTHING = "the services, Postgres and Redis"


@dataclass(slots=True)
class Installation:
    """Both services. `left` has the embedded Postgres and Redis, and `right` uses them too."""

    home: Path
    left: Server = field(init=False)
    right: Server = field(init=False)

    def __post_init__(self) -> None:
        self.left = Server(self.home / "left", {"namespace": "left", "workers": WORKERS})
        self.right = Server(self.home / "right", {"namespace": "right", "workers": WORKERS})

    @property
    def servers(self) -> tuple[Server, Server]:
        """Both, in the order of `NAMESPACES`."""
        return self.left, self.right

    async def start(self) -> float:
        """Start both, or start them again; returns the seconds until both are ready."""
        started = time.monotonic()
        self.left.start()
        await until(self._answers, "Postgres answers")
        await until(self.left.redis_socket, "Redis runs")
        self.right.settings |= {
            "database_url": self.left.postgres_url("gapless_service"),
            "migrate_url": self.left.postgres_url(),
            "redis_url": f"unix://{quote(self.left.redis_socket() or '', safe='/')}?db=0",
        }
        self.right.start()
        await asyncio.gather(*(server.wait_ready(PATIENCE_S * 2) for server in self.servers))
        return time.monotonic() - started

    def kill(self, fault: Fault) -> None:
        """All at once. Raises RuntimeError when something of it does not run."""
        victims = [pid for server in self.servers for pid in server.own()]
        if fault is not Fault.SERVICES:
            victims += tree(_there(self.left.postgres()))
        if fault is Fault.EVERYTHING:
            victims.append(_there(self.left.redis()))
        kill(victims)
        for server in self.servers:
            server.kill()

    def stop(self) -> None:
        """As users do: first who uses the database, then who owns it."""
        self.right.stop()
        self.left.stop()

    async def _answers(self) -> bool:
        """Whether Postgres does."""
        try:
            await (await self.left.connect()).close()
        except AWAY:
            return False
        return True


def _there(pid: int | None) -> int:
    if pid is None:
        raise RuntimeError("what should be killed does not run")
    return pid
