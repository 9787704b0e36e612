"""PyPI `pgqueuer`, run by its own guide: asyncpg, uvloop, a connection a manager, `pgq autovac`.

`prepare DSN`, `load DSN JOBS`, `work DSN MEMBERS`: it runs in an environment of its own. A member is one
`PgQueuer` with a connection of its own, as in its own benchmark, and takes a hundred jobs at a time. It
completes jobs in batches of that size, too.
"""

# The type checker has none of what is installed there.
# mypy: disable-error-code="import-not-found, untyped-decorator"
from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

from load.bench.queue.concurrent_start import ConcurrentStart

BATCH = 100
CHUNK = 1000
ENTRYPOINT = "nothing"


async def prepare(dsn: str) -> None:
    """Install its tables, durable as they are by default, with the autovacuum settings it recommends."""
    session = await asyncpg.connect(dsn)
    queries = Queries(AsyncpgDriver(session))
    await queries.install()
    await queries.optimize_autovacuum()
    await session.close()


async def load(dsn: str, jobs: int) -> None:
    """Empty the queue and its log and enqueue so many jobs; the tables are vacuumed and analysed then."""
    session = await asyncpg.connect(dsn)
    queries = Queries(AsyncpgDriver(session))
    await queries.clear_queue()
    await queries.clear_queue_log()
    for start in range(0, jobs, CHUNK):
        size = min(CHUNK, jobs - start)
        payloads = [b'{"n": %d}' % n for n in range(start, start + size)]
        await queries.enqueue([ENTRYPOINT] * size, payloads, [0] * size)
    await session.execute("vacuum analyze pgqueuer, pgqueuer_log")
    await session.close()


class Member:
    """One manager with a connection of its own; `end` is when its last jobs were stored as completed."""

    def __init__(self, session: Any) -> None:
        self.done = 0
        self.end = 0.0
        self.manager = PgQueuer(AsyncpgDriver(session))
        self.manager.entrypoint(ENTRYPOINT)(self.nothing)
        self._log = self.manager.qm.queries.log_jobs
        self.manager.qm.queries.log_jobs = self._stored

    async def nothing(self, job: Job) -> None:
        """The job."""
        self.done += 1

    async def _stored(self, jobs: list[Any]) -> None:
        await self._log(jobs)
        self.end = time.monotonic()

    async def run(self) -> None:
        """Until the queue is empty."""
        await self.manager.run(batch_size=BATCH, mode=QueueExecutionMode.drain)


async def work(dsn: str, members: int) -> None:
    """Run so many members in this process and report."""
    start = ConcurrentStart()
    crew = [Member(await asyncpg.connect(dsn)) for _ in range(members)]
    start.wait()
    await asyncio.gather(*(member.run() for member in crew))
    start.say({"done": sum(member.done for member in crew), "end": max(member.end for member in crew)})


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
