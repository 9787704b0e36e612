"""Two services, a namespace each, with two workers each, on one Postgres and one Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

import asyncpg

from load.children import command_of, kill, tree
from load.server import Server

NAMESPACES = ("left", "right")
WORKERS = "2"
PATIENCE_S = 60.0


class Fault(StrEnum):
    """What is killed with -9. What is not ends as it does when its parent has gone."""

    SERVICES = "the services"
    POSTGRES = "the services and Postgres"
    EVERYTHING = "the services, Postgres and Redis"


@dataclass(slots=True)
class Installation:
    """`left` brings Postgres and Redis along, `right` uses them."""

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
        socket = await self._until_up()
        here = f"host={quote(socket, safe='/')}&port=5432"
        self.right.settings |= {
            "database_url": f"postgresql://gapless_service@/gapless?{here}",
            "migrate_url": f"postgresql://gapless_owner@/gapless?{here}",
            "redis_url": f"unix://{quote(await self._redis_socket(), safe='/')}?db=0",
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

    async def connect(self) -> asyncpg.Connection:
        """A session of the schema's owner. Raises OSError and more while Postgres is away."""
        session: asyncpg.Connection = await asyncpg.connect(
            host=self._socket_folder(), port=5432, user="gapless_owner", database="gapless", timeout=5.0
        )
        return session

    def _socket_folder(self) -> str:
        """Where Postgres listens, as its pid file says. Raises OSError and IndexError before it does."""
        return (self.left.home / "postgres" / "postmaster.pid").read_text().splitlines()[4]

    async def _until_up(self) -> str:
        """Wait until Postgres answers; the folder of its socket."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                await (await self.connect()).close()
                return self._socket_folder()
            except (OSError, TimeoutError, IndexError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await asyncio.sleep(0.05)
        raise RuntimeError(f"Postgres is not up after {PATIENCE_S} s")

    async def _redis_socket(self) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if (pid := self.left.redis()) and (path := _socket_of(command_of(pid).split())):
                return path
            await asyncio.sleep(0.05)
        raise RuntimeError(f"Redis is not up after {PATIENCE_S} s")


def _socket_of(words: Sequence[str]) -> str | None:
    """Where a Redis listens: it stands in its arguments, and in the title it takes later."""
    for before, word in pairwise(words):
        if before == "--unixsocket":
            return word
    return next((w.removeprefix("unixsocket:") for w in words if w.startswith("unixsocket:")), None)


def _there(pid: int | None) -> int:
    if pid is None:
        raise RuntimeError("what should be killed does not run")
    return pid
