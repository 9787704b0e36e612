"""`python -m load.spark.sink`: does each row become one message while tasks fail and the query is killed?

A streaming query writes numbered rows from text files into the sink; three tasks in ten fail at random,
before, during or after their work, and the query's processes are killed with -9 at random moments. Afterwards
each number must be one message, and every channel dense.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import asyncpg

from load.children import CHECKOUT, Child
from load.spark.database import Postgres, postgres

say = partial(print, flush=True)
PATIENCE_S = 300.0

BROKEN = """
select (select count(*) from gapless.messages),
       (select count(distinct (m.data ->> 'n')::bigint) from gapless.messages m
        where (m.data ->> 'n')::bigint between 0 and $1 - 1),
       (select count(*) from (select from gapless.messages group by channel_id
        having count(*) <> max(seq) or min(seq) <> 1 or count(distinct seq) <> count(*)) x),
       (select count(*) from (select seq - lag(seq) over (partition by channel_id order by id) as step
        from gapless.messages) x where step <> 1)
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is in the log at the end. `numbers`: how many of the rows are there at all."""

    rows: int
    messages: int
    numbers: int
    holes: int
    crossed: int

    @property
    def ok(self) -> bool:
        """Whether each row is one message, and seq dense and rising with id."""
        return self.messages == self.numbers == self.rows and not self.holes and not self.crossed

    def line(self) -> str:
        """For people."""
        lost, doubled = self.rows - self.numbers, self.messages - self.numbers
        seq = (
            "seq dense"
            if not self.holes and not self.crossed
            else f"{self.holes + self.crossed} breaks in seq"
        )
        return f"{self.rows:,} rows, {self.messages:,} messages: {lost:,} lost, {doubled:,} doubled, {seq}"


class Run:
    """One source, one checkpoint, one log, and the query that is killed and started again."""

    def __init__(self, server: Postgres, home: Path, rows: int, per_file: int, chance: random.Random) -> None:
        self._server = server
        self._home = home
        self._rows = rows
        self._chance = chance
        source = home / "source"
        source.mkdir(parents=True)
        for first in range(0, rows, per_file):
            text = "".join(f"{n}\n" for n in range(first, min(rows, first + per_file)))
            (source / f"{first:09}.txt").write_text(text)
        self.batches = -(-rows // per_file)

    async def play(self, kills: int) -> Verdict:
        """Kill the query so often, let it come to its end, and look."""
        session = await self._server.connect()
        await session.execute("create role shop login in role gapless_publisher")
        for kill in range(1, kills + 1):
            await self._kill_once(session, kill, kills)
        child = self._start()
        deadline = time.monotonic() + PATIENCE_S
        while child.code() is None and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        if child.code() != 0:
            child.stop(1.0)
            raise RuntimeError(f"the query ended with {child.code()}:\n{child.tail(40)}")
        found = await session.fetchrow(BROKEN, self._rows)
        assert found is not None
        left = await session.fetchval("select count(*) from gapless.spark_attempts")
        say(f"{left} attempts left behind")
        return Verdict(self._rows, *found)

    def _start(self) -> Child:
        url = self._server.url.replace("postgres@", "shop@", 1)
        words = [url, self._home / "source", self._home / "checkpoint"]
        path = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "pipeline")])
        command = [sys.executable, "-P", "-m", "load.spark.sink_query", *map(str, words)]
        return Child(command, self._home / "log", {"PYTHONPATH": path}).start()

    async def _kill_once(self, session: asyncpg.Connection, kill: int, kills: int) -> None:
        """Let it get some batches further, then kill it a random moment later."""
        left = self.batches - await _decided(session)
        goal = await _decided(session) + self._chance.randint(1, max(1, left // (kills - kill + 2)))
        child = self._start()
        deadline = time.monotonic() + PATIENCE_S
        while await _decided(session) < goal:
            if child.code() is not None or time.monotonic() > deadline:
                child.stop(1.0)
                raise RuntimeError(f"the query got no further, code {child.code()}:\n{child.tail(40)}")
            await asyncio.sleep(0.005)
        await asyncio.sleep(self._chance.uniform(0, 1.0))
        if child.code() is not None:
            raise RuntimeError("the query came to its end before it could be killed")
        os.killpg(child.pid, signal.SIGKILL)
        child.stop(1.0)
        stored = await session.fetchval("select count(*) from gapless.messages")
        say(f"kill {kill}: {await _decided(session)} of {self.batches} batches, {stored:,} messages")


async def _decided(session: asyncpg.Connection) -> int:
    newest = await session.fetchval("select coalesce(max(batch) + 1, 0) from gapless.spark_batches")
    return int(newest)


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What can be chosen."""
    parser = argparse.ArgumentParser(prog="python -m load.spark.sink", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--per-file", type=int, default=4_000, help="rows of a batch")
    parser.add_argument("--short", action="store_true", help="5,000 rows and one kill")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    chosen = parser.parse_args(arguments)
    if chosen.short:
        chosen.rows, chosen.kills, chosen.per_file = 5_000, 1, 1_250
    return chosen


def main() -> int:
    """0: each row is one message; 1: not so; 2: no verdict."""
    chosen = options()
    say(f"seed {chosen.seed}")
    home = Path(tempfile.mkdtemp(prefix="gapless-sink-"))
    started = time.monotonic()
    try:
        with postgres(say) as server:
            chance = random.Random(chosen.seed)
            run = Run(server, home, chosen.rows, chosen.per_file, chance)
            verdict = asyncio.run(run.play(chosen.kills))
    except (RuntimeError, OSError) as error:
        say(f"no verdict: {error}")
        return 2
    finally:
        shutil.rmtree(home, ignore_errors=True)
    say(f"{verdict.line()}; {chosen.kills} kills, {time.monotonic() - started:.0f} s")
    return 0 if verdict.ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
