"""Kills parts of the running service with SIGKILL, and checks that each one comes back."""

from __future__ import annotations

import asyncio
import random
import socket

from load.children import kill, tree
from load.server import Server
from load.waiting import PATIENCE_S, until

"""A killed part must be back within this many seconds."""

PARTS = ("worker", "service", "redis", "postgres")


async def hit(server: Server, part: str, chance: random.Random, away_s: float = 0.0) -> None:
    """Kill one of `PARTS`, and return when the service is ready again. The whole service stays down for
    `away_s`. Raises RuntimeError if it is not back in time."""
    if part == "worker":
        await _worker(server, chance)
    elif part == "service":
        server.kill()
        await asyncio.sleep(away_s)
        server.start()
    elif part == "redis":
        old = _running(part, server.redis())
        flush(server.redis_socket())
        kill([old])
        await until(lambda: server.redis() not in (None, old), "another Redis runs")
    else:
        old = _running(part, server.postgres())
        # The backends are killed with the postmaster, as in a failure of the machine.
        kill(tree(old))
        await until(lambda: server.postgres() not in (None, old), "another Postgres runs")
    await server.wait_ready()


async def _worker(server: Server, chance: random.Random) -> None:
    before = workers(server)
    victim = chance.choice(before)
    kill([victim])

    def replaced() -> bool:
        now = workers(server)
        return victim not in now and len(now) >= len(before)

    await until(replaced, "another worker runs")


def workers(server: Server) -> list[int]:
    """The worker processes: the Python processes without the supervisor."""
    own = server.own()
    return [pid for pid in own if pid != own[0]]


def flush(path: str | None) -> None:
    """Send FLUSHALL to the Redis at this socket. Raises RuntimeError without a socket."""
    if path is None:
        raise RuntimeError("Redis does not listen")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(path)
        connection.sendall(b"FLUSHALL\r\n")
        connection.recv(64)


def _running(part: str, pid: int | None) -> int:
    if pid is None:
        raise RuntimeError(f"{part} is not running")
    return pid
