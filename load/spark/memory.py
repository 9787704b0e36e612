"""`python -m load.spark.memory`: checks that a large export is complete on a cluster with little memory.

The cluster has two executors of 1 GiB, and the driver has 2 GiB.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence

import pyarrow.dataset as ds

from load import drill
from load.children import command_of, parents, peak_bytes, python_path
from load.drill import say
from load.postgres import Postgres
from load.spark.cluster import cluster
from load.spark.database import Sample, add_data, fill, postgres
from load.verdict import Breach, Verdict

LOOK_S = 0.2


class Peaks:
    """The peak memory of each kind of process, polled while the block runs."""

    def __init__(self) -> None:
        self.bytes: dict[str, int] = defaultdict(int)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(LOOK_S):
            for pid in parents():
                kind = kind_of(command_of(pid))
                if kind is not None:
                    self.bytes[kind] = max(self.bytes[kind], peak_bytes(pid))


def kind_of(command: str) -> str | None:
    """The part of an export that a process is; None if it is none."""
    if "CoarseGrainedExecutorBackend" in command:
        return "executor"
    if "pyspark.daemon" in command:
        return "Python of an executor"
    if "gapless_spark export" in command:
        return "driver's Java" if "java" in command.split(" ", 1)[0] else "driver's Python"
    if "org.apache.spark.deploy.SparkSubmit" in command:
        return "driver's Java"
    return None


def export(server: Postgres, rows: int) -> Verdict:
    """Export everything, and count the rows in the files."""
    with drill.temporary_home("memory") as folder, cluster(2, 1, "1g") as spark:
        command = [sys.executable, "-m", "gapless_spark", "export", "--to", str(folder / "to")]
        command += ["--database-url", server.url, "--master", spark.master, "--tasks", "2"]
        command += ["--driver-memory", "2g", "--executor-memory", "1g"]
        environment = {**os.environ, "PYTHONPATH": python_path(), "PYSPARK_PYTHON": sys.executable}
        started = time.monotonic()
        with Peaks() as peaks:
            code = subprocess.run(command, env=environment).returncode
        took = time.monotonic() - started
        found = ds.dataset(folder / "to", format="parquet").count_rows() if code == 0 else 0
        files = list((folder / "to").rglob("date=*/*.parquet"))
    done = f"exit code {code}, {found:,} of {rows:,} rows in {len(files)} files"
    say(f"{done} in {took:.1f} s, including the start")
    for kind, most in sorted(peaks.bytes.items()):
        say(f"  {kind}: {most / 2**20:,.0f} MiB at most, each")
    verdict = Verdict((Breach.LOST, Breach.DOUBLED))
    verdict.add(Breach.FAILED, done, count=code != 0)
    verdict.add(Breach.LOST, done, rows - found)
    verdict.add(Breach.DOUBLED, done, found - rows)
    return verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once."""
    parser = drill.parser("spark.memory", __doc__, "", "--messages 100000")
    parser.add_argument("--messages", type=int, default=10_000_000)
    add_data(parser)
    chosen = parser.parse_args(arguments)

    def play() -> Verdict:
        with postgres() as server:
            asyncio.run(fill(server, Sample.of(chosen.data), chosen.messages))
            return export(server, chosen.messages)

    return drill.conclude(drill.played(play))


if __name__ == "__main__":
    sys.exit(main())
