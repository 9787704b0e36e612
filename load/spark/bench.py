"""`python -m load.spark.bench`: how fast Spark reads the log, compared with its JDBC source and a bare COPY.

Then the same with `--growth` messages, and their export on a cluster with little memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from load import drill
from load.children import python_path
from load.drill import say
from load.figure import Figure, show, verdict_on, versus
from load.postgres import Postgres, programs
from load.spark import jdbc, memory
from load.spark.database import Sample, add_data, fill, postgres
from load.verdict import Breach, Verdict

WARM_UPS = 2
ROUNDS = 6
GOALS = {("source", "jdbc"): 1.0, ("export", "jdbc"): 1.7, ("export", "copy"): 0.75, ("source", "copy"): 0.0}
GOAL_GROWTH = 0.9


def drive(server: Postgres, ways: str, rounds: int, rows: int, upto: int) -> dict[str, list[float]]:
    """Rows per second of each way, a value for each run, without the warm-ups."""
    command = [sys.executable, "-m", "load.spark.drive", "--url", server.url, "--jdbc", jdbc.url(server)]
    command += ["--jar", str(jdbc.jar()), "--psql", str(programs() / "psql"), "--ways", ways]
    command += ["--rounds", str(rounds + WARM_UPS), "--rows", str(rows), "--upto", str(upto)]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    rates: dict[str, list[float]] = defaultdict(list)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            run: dict[str, Any] = json.loads(line)
            rates[run["way"]].append(run["rows"] / run["seconds"])
            rate = rates[run["way"]][-1]
            say(f"{run['way']}: {run['rows']:,} rows in {run['seconds']:.2f} s: {rate:,.0f}/s")
    if process.returncode != 0:
        raise RuntimeError(f"the driver ended with {process.returncode}")
    return {way: all_[WARM_UPS:] for way, all_ in rates.items()}


def figures(rates: dict[str, list[float]], rows: int) -> list[Figure]:
    """Compare each way with its peers, round by round."""
    checked = f"{rows:,} rows counted in the files of every run"
    return [
        versus(f"{ours} → Parquet against {peer}, {rows:,} rows", "rows/s",
               list(zip(rates[ours], rates[peer], strict=True)), goal or float("inf"), checked)
        for (ours, peer), goal in GOALS.items()
        if ours in rates and peer in rates
    ]  # fmt: skip


def growth(server: Postgres, sample: Sample, rows: int, before: dict[str, list[float]]) -> list[Figure]:
    """Measure again with more messages. Compare each way with COPY, and with its earlier rates."""
    asyncio.run(fill(server, sample, rows))
    after = drive(server, "copy,source,export", 2, rows, rows)
    return figures(after, rows) + [
        Figure(f"{way}, {rows:,} rows against fewer", statistics.median(after[way]),
               statistics.median(before[way]), "rows/s",
               statistics.median(after[way]) / statistics.median(before[way]), GOAL_GROWTH, True,
               "rows counted in the files")
        for way in ("source", "export")
    ]  # fmt: skip


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = drill.parser("spark.bench", __doc__, "", "--short", "--growth 0 --json load/results/spark.json")
    parser.add_argument("--messages", type=int, default=1_000_000)
    add_data(parser)
    parser.add_argument("--growth", type=int, default=10_000_000, help="then measure so many; 0: do not")
    parser.add_argument("--short", action="store_true", help="one round of few messages, without goals")
    parser.add_argument("--ways", default="copy,jdbc,source,export")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args(arguments)
    if chosen.short:
        chosen.messages, chosen.growth = 50_000, 0
    return chosen


def play(chosen: argparse.Namespace) -> Verdict:
    """Run all. Raises RuntimeError if a way fails. With `--short` no goal is checked."""
    sample = Sample.of(chosen.data)
    found, verdict = list[Figure](), Verdict((Breach.SHORT,))
    with postgres() as server:
        asyncio.run(fill(server, sample, chosen.messages))
        rates = drive(server, chosen.ways, 1 if chosen.short else ROUNDS, chosen.messages, chosen.messages)
        found += figures(rates, chosen.messages)
        if chosen.growth:
            found += growth(server, sample, chosen.growth, rates)
            verdict.include(memory.export(server, chosen.growth))
    show(found)
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(one) for one in found]))
    if not chosen.short:
        verdict.include(verdict_on(found))
    return verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once."""
    chosen = options(arguments)
    return drill.conclude(drill.played(lambda: play(chosen)))


if __name__ == "__main__":
    sys.exit(main())
