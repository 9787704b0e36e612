"""`python -m load.spark.sink`: checks that each row becomes one message despite failures.

A streaming query writes numbered rows from text files to the sink. Three tasks in ten fail at random, before,
during or after their work, and the query's processes are killed with SIGKILL at random moments. Afterwards
each number must be one message, and seq must be dense in every channel.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import asyncpg

from load import drill
from load.children import Child, python_path
from load.drill import say
from load.postgres import Postgres
from load.spark.database import postgres
from load.verdict import Breach, Verdict
from load.waiting import PATIENCE_S, until

SPARK_PATIENCE_S = 5 * PATIENCE_S

BROKEN = """
select (select count(*) from gapless.messages),
       (select count(distinct (m.data ->> 'n')::bigint) from gapless.messages m
        where (m.data ->> 'n')::bigint between 0 and $1 - 1),
       (select count(*) from (select from gapless.messages group by channel_id
        having count(*) <> max(seq) or min(seq) <> 1 or count(distinct seq) <> count(*)) x),
       (select count(*) from (select seq - lag(seq) over (partition by channel_id order by id) as step
        from gapless.messages) x where step <> 1)
"""


def judge(rows: int, messages: int, numbers: int, holes: int, crossed: int) -> Verdict:
    """The verdict on the log at the end. `numbers`: how many of the rows are in it."""
    verdict = Verdict((Breach.LOST, Breach.DOUBLED, Breach.HOLES), f"{rows:,} rows, {messages:,} messages")
    verdict.add(Breach.LOST, f"{numbers:,} of the rows are there", rows - numbers)
    verdict.add(Breach.DOUBLED, f"{messages:,} messages of {numbers:,} rows", messages - numbers)
    verdict.add(Breach.HOLES, "channels that are not dense", holes)
    verdict.add(Breach.OUT_OF_ORDER, "steps of seq that are not in the order of ids", crossed)
    return verdict


class Run:
    """One source, one checkpoint, one log, and a query that is killed and restarted."""

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
        """Kill the query so many times, let it finish, and check the log."""
        session = await self._server.connect()
        await session.execute("create role shop login")
        await session.execute("select gapless.grant_publisher('shop')")
        for kill in range(1, kills + 1):
            await self._kill_once(session, kill, kills)
        child = self._start()
        await until(lambda: child.code() is not None, "the query ends", SPARK_PATIENCE_S)
        if child.code() != 0:
            child.stop(1.0)
            raise RuntimeError(f"the query ended with {child.code()}:\n{child.tail(40)}")
        found = await session.fetchrow(BROKEN, self._rows)
        assert found is not None
        left = await session.fetchval("select count(*) from gapless.spark_attempts")
        say(f"{left} attempts remain in the books")
        return judge(self._rows, *found)

    def _start(self) -> Child:
        url = self._server.url.replace("postgres@", "shop@", 1)
        words = [url, self._home / "source", self._home / "checkpoint"]
        command = [sys.executable, "-P", "-m", "load.spark.sink_query", *map(str, words)]
        return Child(command, self._home / "log", {"PYTHONPATH": python_path()}).start()

    async def _kill_once(self, session: asyncpg.Connection, kill: int, kills: int) -> None:
        """Run it for some batches, then kill it after a random time."""
        left = self.batches - await _decided(session)
        goal = await _decided(session) + self._chance.randint(1, max(1, left // (kills - kill + 2)))
        child = self._start()
        deadline = time.monotonic() + SPARK_PATIENCE_S
        while await _decided(session) < goal:
            if child.code() is not None or time.monotonic() > deadline:
                child.stop(1.0)
                raise RuntimeError(f"the query made no progress, code {child.code()}:\n{child.tail(40)}")
            await asyncio.sleep(0.005)
        await asyncio.sleep(self._chance.uniform(0, 1.0))
        if child.code() is not None:
            raise RuntimeError("the query ended before it could be killed")
        os.killpg(child.pid, signal.SIGKILL)
        child.stop(1.0)
        stored = await session.fetchval("select count(*) from gapless.messages")
        say(f"kill {kill}: {await _decided(session)} of {self.batches} batches, {stored:,} messages")


async def _decided(session: asyncpg.Connection) -> int:
    newest = await session.fetchval("select coalesce(max(batch) + 1, 0) from gapless.spark_batches")
    return int(newest)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once."""
    parser = drill.parser("spark.sink", __doc__, "", "--short")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--per-file", type=int, default=4_000, help="rows in a file, which is a batch")
    parser.add_argument("--short", action="store_true", help="5,000 rows and one kill")
    drill.add_seed(parser)
    chosen = parser.parse_args(arguments)
    if chosen.short:
        chosen.rows, chosen.kills, chosen.per_file = 5_000, 1, 1_250
    say(f"seed {chosen.seed}, {chosen.kills} kills")
    home = drill.home("sink")

    def play() -> Verdict:
        with postgres() as server:
            run = Run(server, home, chosen.rows, chosen.per_file, random.Random(chosen.seed))
            return asyncio.run(run.play(chosen.kills))

    verdict = drill.played(play)
    shutil.rmtree(home, ignore_errors=True)
    return drill.conclude(verdict)


if __name__ == "__main__":
    sys.exit(main())
