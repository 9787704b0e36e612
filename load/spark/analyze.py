"""`python -m load.spark.analyze`: measures `gapless analyze`, including the start of Spark.

It uses two logs: ten messages that are hours apart, and recorded or made-up messages. The processor seconds
of all processes of a run are printed too, because only these are comparable on a busy machine. The first run
does not count, because a Java older than 19 writes its archive of classes then. `--reference TREE` also runs
the package of another checkout, and compares all tables.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from load import drill
from load.children import CHECKOUT, python_path, stat_of, tree
from load.drill import say
from load.postgres import Postgres
from load.spark.database import Sample, add_data, fill, postgres
from load.verdict import Breach, Verdict

GOAL_TEN_S, GOAL_CHAT_S = 8.0, 25.0
CHAT = 211_038
FIELDS = ("--sender-field", "user", "--time-field", "sent_at")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Run:
    """The seconds of one run: wall time and processor time."""

    wall_s: float
    cpu_s: float


def analyze(checkout: Path, server: Postgres, folder: Path, *more: str) -> Run:
    """Run once, with the page and tables in `folder`. Raises RuntimeError if it fails."""
    variables = {"PYTHONPATH": python_path(checkout), "GAPLESS_DATABASE_URL": server.url}
    environment = {**os.environ, **variables}
    command = [sys.executable, "-P", "-m", "gapless_spark", "analyze", "--tables", str(folder / "tables")]
    command += ["--report", str(folder / "report.html"), *more]
    began_at = time.monotonic()
    took: dict[int, float] = {}
    with subprocess.Popen(command, env=environment, cwd=folder) as process:
        while process.poll() is None:
            took |= {pid: found for pid in tree(process.pid) if (found := processor_s(pid)) is not None}
            time.sleep(0.05)
    if process.returncode:
        raise RuntimeError(f"analyze ended with {process.returncode}")
    return Run(time.monotonic() - began_at, sum(took.values()))


def processor_s(pid: int) -> float | None:
    """The processor seconds of a process so far; None if it has ended."""
    words = stat_of(pid)
    return (int(words[11]) + int(words[12])) / _TICKS if words else None


def differing(one: Path, other: Path) -> list[str]:
    """The names of tables whose rows differ between both folders. The order of rows does not matter."""
    import pyarrow.parquet as pq

    def rows(path: Path) -> list[str]:
        return sorted(str(sorted(row.items())) for row in pq.read_table(path).to_pylist())

    names = {path.name for folder in (one, other) for path in folder.iterdir()}
    return sorted(
        name
        for name in names
        if not ((one / name).is_dir() and (other / name).is_dir() and rows(one / name) == rows(other / name))
    )


async def ten(server: Postgres) -> None:
    """Publish ten messages, twenty hours apart."""
    session = await server.connect()
    for n in range(10):
        text = f'{{"text": "hello there number {n}", "user": "user-{n % 4}"}}'
        await session.execute("select gapless.publish($1, $2::jsonb)", f"chat.room{n % 3}", text)
    await session.execute(
        "update gapless.messages set created_at = now() - interval '9 days' + id * interval '20 hours'"
    )
    await session.close()


def play(chosen: argparse.Namespace) -> Verdict:
    """Measure both logs. Raises RuntimeError if a run fails."""
    verdict = Verdict((Breach.SLOW, Breach.DISAGREE))
    with postgres() as server, drill.temporary_home("analyze-load") as home:
        asyncio.run(ten(server))
        logs: list[tuple[str, Postgres, float, tuple[str, ...]]] = [("ten", server, GOAL_TEN_S, ())]
        if not chosen.short:
            chat = replace(server, log="chat")
            asyncio.run(chat.make_log(roles=False))
            asyncio.run(fill(chat, Sample.of(chosen.data, CHAT), CHAT))
            logs.append(("chat", chat, GOAL_CHAT_S, FIELDS))
        for name, log, goal_s, more in logs:
            folder = home / name
            folder.mkdir()
            runs = [analyze(CHECKOUT, log, folder, *more) for _ in range(1 if chosen.short else 3)]
            best = min(runs[1:] or runs, key=lambda run: run.wall_s)
            said = f"{name}: {best.wall_s:.1f} s (goal {goal_s:g}), {best.cpu_s:.1f} s of processor time"
            say(said)
            verdict.add(Breach.SLOW, said, count=best.wall_s > goal_s and not chosen.short)
            if chosen.reference:
                other = home / f"{name}-reference"
                other.mkdir()
                before = analyze(chosen.reference, log, other, *more)
                say(f"{name}, reference: {before.wall_s:.1f} s, {before.cpu_s:.1f} s of processor time")
                for table in differing(folder / "tables", other / "tables"):
                    verdict.add(Breach.DISAGREE, f"{name}: {table}")
    return verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once."""
    parser = drill.parser("spark.analyze", __doc__, "", "--short", "--reference ../before")
    add_data(parser)
    parser.add_argument("--reference", type=Path, help="a checkout to compare with")
    parser.add_argument("--short", action="store_true", help="one run on ten messages, without goals")
    chosen = parser.parse_args(arguments)
    return drill.conclude(drill.played(lambda: play(chosen)))


if __name__ == "__main__":
    sys.exit(main())
