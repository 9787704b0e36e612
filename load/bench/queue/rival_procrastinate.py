"""PyPI `procrastinate`, with what makes it faster: psycopg's compiled half, uvloop, concurrent jobs, finished
jobs deleted, and no transaction around its single statements.

`prepare DSN`, `load DSN JOBS`, `work DSN MEMBERS`: it runs in an environment of its own. A member is one
asyncio worker, which fetches jobs one after the other, holds up to a hundred of them at a time, and completes
each by itself; it has no batches.
"""

# The type checker has none of what is installed there.
# mypy: disable-error-code="import-not-found, untyped-decorator"
from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import psycopg
import uvloop
from procrastinate import App, PsycopgConnector

from load.bench.queue.concurrent_start import ConcurrentStart

CONCURRENCY = 100
CHUNK = 1000
SESSIONS = 2
"""Database sessions a member: one fetches while the other stores what is finished. More made it slower."""


async def quick(session: Any) -> None:
    """Each of its statements is a transaction by itself, so none needs a begin and a commit around it."""
    await session.set_autocommit(True)


def application(dsn: str, sessions: int) -> tuple[App, list[int]]:
    """An application with one task, and where that counts."""
    connector = PsycopgConnector(conninfo=dsn, min_size=sessions, max_size=sessions, configure=quick)
    app = App(connector=connector)
    count = [0]

    @app.task(name="nothing")
    async def nothing(n: int) -> None:
        count[0] += 1

    return app, count


async def prepare(dsn: str) -> None:
    """Install its tables."""
    app, _ = application(dsn, SESSIONS)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def load(dsn: str, jobs: int) -> None:
    """Empty its tables and defer so many jobs; the tables are vacuumed and analysed then."""
    app, _ = application(dsn, SESSIONS)
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as session, app.open_async():
        await session.execute("truncate procrastinate_jobs, procrastinate_events cascade")
        for start in range(0, jobs, CHUNK):
            numbers = range(start, min(start + CHUNK, jobs))
            await app.tasks["nothing"].batch_defer_async(*({"n": n} for n in numbers))
        await session.execute("vacuum analyze procrastinate_jobs, procrastinate_events")


async def work(dsn: str, members: int) -> None:
    """Run so many members in this process until nothing is left, and report."""
    start = ConcurrentStart()
    app, count = application(dsn, members * SESSIONS)

    async def member() -> None:
        await app.run_worker_async(
            concurrency=CONCURRENCY,
            wait=False,
            delete_jobs="successful",
            listen_notify=False,
            install_signal_handlers=False,
        )

    async with app.open_async():
        start.wait()
        await asyncio.gather(*(member() for _ in range(members)))
        start.say({"done": count[0], "end": time.monotonic()})


def main() -> None:
    """Do what the command line says."""
    verb, dsn, *numbers = sys.argv[1:]
    if verb == "prepare":
        uvloop.run(prepare(dsn))
    elif verb == "load":
        uvloop.run(load(dsn, int(numbers[0])))
    else:
        uvloop.run(work(dsn, int(numbers[0])))


if __name__ == "__main__":
    main()
