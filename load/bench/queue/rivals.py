"""The rivals from this side: their databases, their jobs, their crews, and whether they did what they say."""

from __future__ import annotations

import asyncio
import subprocess
from dataclasses import dataclass

from load.bench.queue.crew import crew
from load.children import CHECKOUT
from load.figure import UnfitError
from load.install import python_of
from load.server import Server
from load.waiting import PATIENCE_S

PROCESSES = 2
"""Members are spread over so many processes at most, on every side: a core each."""

PATIENCE = 2 * PATIENCE_S

PLACE = "queue"
PACKAGES = ("procrastinate", "psycopg[binary]", "pgqueuer[asyncpg]", "uvloop")
VERSIONS = (
    "from importlib.metadata import version; import procrastinate, psycopg_binary, asyncpg, uvloop;"
    "print('procrastinate', version('procrastinate'), 'and pgqueuer', version('pgqueuer'))"
)
"""Where the rivals are installed, by which names, and a program that says which they are."""


def spread(members: int) -> list[int]:
    """How many members each process runs."""
    processes = min(members, PROCESSES)
    return [members // processes + (number < members % processes) for number in range(processes)]


@dataclass(frozen=True, slots=True)
class Rival:
    """One job queue in a database of its own. `left` and `kept` are queries: how many jobs are not completed,
    and how many are known as completed (empty: it forgets them)."""

    name: str
    jobs: int
    left: str
    kept: str
    dsn: str = ""

    @property
    def _database(self) -> str:
        return f"rival_{self.name}"

    def _command(self, *words: str) -> list[str]:
        return [str(python_of(PLACE)), "-m", f"load.bench.queue.rival_{self.name}", *words]

    async def _run(self, *words: str) -> None:
        answer = await asyncio.to_thread(
            subprocess.run, self._command(*words), capture_output=True, cwd=CHECKOUT
        )
        if answer.returncode != 0:
            raise RuntimeError(f"{self.name} {words[0]}:\n{answer.stderr.decode(errors='replace')[-2000:]}")

    async def prepared(self, server: Server, jobs: int) -> Rival:
        """The same with its tables installed."""
        session = await server.connect("postgres", "postgres")
        await session.execute(f'create database "{self._database}"')
        await session.close()
        dsn = server.postgres_url("postgres", self._database)
        rival = Rival(self.name, jobs, self.left, self.kept, dsn)
        await rival._run("prepare", rival.dsn)
        return rival

    async def rate(self, server: Server, members: int) -> float:
        """Jobs completed a second, from the starting gun until the last one is stored as completed."""
        await self._run("load", self.dsn, str(self.jobs))
        commands = [self._command("work", self.dsn, str(share)) for share in spread(members)]
        async with crew(commands) as workers:
            started = workers.go()
            reports = await workers.reports(PATIENCE)
        await self._check(server, sum(report["done"] for report in reports))
        return float(self.jobs / (max(report["end"] for report in reports) - started))

    async def _check(self, server: Server, done: int) -> None:
        session = await server.connect("postgres", self._database)
        left = await session.fetchval(self.left)
        kept = await session.fetchval(self.kept) if self.kept else self.jobs
        await session.close()
        if not done == kept == self.jobs or left:
            raise UnfitError(f"{self.name} ran {done} of {self.jobs} jobs; {left} are left, {kept} completed")


PGQUEUER = Rival(
    "pgqueuer",
    30_000,
    "select count(*) from pgqueuer",
    "select count(*) from pgqueuer_log where status = 'successful'",
)
PROCRASTINATE = Rival("procrastinate", 4_000, "select count(*) from procrastinate_jobs", "")
