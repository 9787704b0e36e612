"""A large export on a cluster with little memory: two executors of 1 GiB, a driver of 2 GiB.

`python -m load.spark.memory [--messages 10000000]`; exit code 1: not every message was exported.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from functools import partial
from pathlib import Path

import pyarrow.dataset as ds

from load.children import CHECKOUT, command_of, parents
from load.spark.cluster import cluster, rss
from load.spark.database import Postgres, Sample, Say, fill, postgres

LOOK_S = 0.2
say = partial(print, flush=True)


class Peaks:
    """The most memory that each kind of process had, looked at again and again while the block runs."""

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
                    self.bytes[kind] = max(self.bytes[kind], rss(pid))


def kind_of(command: str) -> str | None:
    """What a process is to an export."""
    if "CoarseGrainedExecutorBackend" in command:
        return "executor"
    if "pyspark.daemon" in command:
        return "Python of an executor"
    if "gapless_spark export" in command:
        return "driver's Java" if "java" in command.split(" ", 1)[0] else "driver's Python"
    if "org.apache.spark.deploy.SparkSubmit" in command:
        return "driver's Java"
    return None


def export(server: Postgres, rows: int, tell: Say) -> bool:
    """Export everything; whether each message came out."""
    with tempfile.TemporaryDirectory(prefix="gapless-memory-") as folder, cluster(2, 1, "1g") as spark:
        command = [sys.executable, "-m", "gapless_spark", "export", "--to", folder + "/to"]
        command += ["--database-url", server.url, "--master", spark.master, "--tasks", "2"]
        command += ["--driver-memory", "2g", "--executor-memory", "1g"]
        environment = {
            **os.environ,
            "PYTHONPATH": str(CHECKOUT / "pipeline"),
            "PYSPARK_PYTHON": sys.executable,
        }
        started = time.monotonic()
        with Peaks() as peaks:
            code = subprocess.run(command, env=environment).returncode
        took = time.monotonic() - started
        found = ds.dataset(folder + "/to", format="parquet").count_rows() if code == 0 else 0
        files = list(Path(folder, "to").rglob("date=*/*.parquet"))
    done = f"exit code {code}, {found:,} of {rows:,} rows in {len(files)} files"
    tell(f"{done} after {took:.1f} s with the start")
    for kind, most in sorted(peaks.bytes.items()):
        tell(f"  {kind}: {most / 2**20:,.0f} MiB at most, each")
    return code == 0 and found == rows


def main() -> int:
    """0: all rows are there; 1: not."""
    parser = argparse.ArgumentParser(prog="python -m load.spark.memory", description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--data", type=Path, help="recorded messages, gzipped JSON lines; none: made-up ones")
    chosen = parser.parse_args()
    with postgres(say) as server:
        sample = Sample.read(chosen.data) if chosen.data else Sample.made()
        asyncio.run(fill(server, sample, chosen.messages, say))
        return 0 if export(server, chosen.messages, say) else 1


if __name__ == "__main__":
    sys.exit(main())
