"""Reads a log in all compared ways with one Spark session, and writes Parquet. It is a separate program,
because a process can have only one session.

`python -m load.spark.drive --url URL --jdbc URL --jar FILE --upto ID --rows N --ways source,jdbc --rounds 8`
prints a JSON line for each run: the way, seconds, rows.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

COLUMNS = (
    "m.id, c.name::text as channel, m.seq, m.type, m.key, m.data::text as data,"
    " m.headers::text as headers, m.sender, m.created_at"
)
SELECT = f"select {COLUMNS} from gapless.messages m join gapless.channels c on c.id = m.channel_id"
FETCH_SIZE = 10_000
PARTITIONS = 2


class Ways:
    """The ways to read. Each reads the whole log up to `upto`, and writes it under `home`."""

    def __init__(self, asked: argparse.Namespace, home: Path) -> None:
        self.asked = asked
        self.home = home
        self._session: Any = None

    @property
    def session(self) -> Any:
        """A session on local[2], with the JDBC driver."""
        if self._session is None:
            import gapless_spark
            from gapless_spark.session import SessionOptions, start

            conf = (("spark.driver.extraClassPath", str(self.asked.jar)), *self.asked.conf)
            options = SessionOptions("bench", "local[2]", driver_memory="4g", conf=conf)
            self._session = start(options)
            gapless_spark.register(self._session)
        return self._session

    def copy(self) -> None:
        """The lower bound: a COPY of the same columns, without storing them."""
        statement = f"copy ({SELECT} where m.id <= {self.asked.upto}) to stdout (format binary)"
        command = [self.asked.psql, self.asked.url, "-X", "-q", "-c", statement]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)

    def source(self) -> None:
        """The data source, with Spark's own Parquet sink."""
        frame = self.session.read.format("gapless").option("url", self.asked.url)
        frame.option("minPartitions", PARTITIONS).load().write.parquet(str(self.home / "source"))

    def jdbc(self) -> None:
        """Spark's JDBC source, partitioned by id as in its guide."""
        options = {
            "url": self.asked.jdbc,
            "driver": "org.postgresql.Driver",
            "dbtable": f"({SELECT} where m.id <= {self.asked.upto}) t",
            "partitionColumn": "id",
            "lowerBound": "1",
            "upperBound": str(self.asked.upto),
            "numPartitions": str(PARTITIONS),
            "fetchsize": str(FETCH_SIZE),
        }
        self.session.read.format("jdbc").options(**options).load().write.parquet(str(self.home / "jdbc"))

    def export(self) -> None:
        """The export job, from its plan to its last commit, in the running session."""
        import threading

        from gapless_spark.export.job import Export
        from gapless_spark.export.options import ExportOptions, Shape
        from gapless_spark.export.progress import Silent

        options = ExportOptions(self.asked.url, self.home / "export", Shape(), tasks=PARTITIONS)
        Export(options, lambda: self.session, Silent(), threading.Event()).run()

    def stored(self, way: str) -> int:
        """The number of rows in the files."""
        import pyarrow.dataset as ds

        if way == "copy":
            return int(self.asked.rows)
        return int(ds.dataset(str(self.home / way), format="parquet").count_rows())


def measure(ways: Ways, way: str, run: Callable[[], None]) -> dict[str, Any]:
    """Measure one run, check the number of its rows, and delete its files."""
    target = ways.home / way
    shutil.rmtree(target, ignore_errors=True)
    started = time.perf_counter()
    run()
    took = time.perf_counter() - started
    rows = ways.stored(way)
    shutil.rmtree(target, ignore_errors=True)
    if rows != ways.asked.rows:
        raise SystemExit(f"{way} wrote {rows} rows of {ways.asked.rows}")
    return {"way": way, "seconds": took, "rows": rows}


def main() -> None:
    """Measure all ways in turn, for the given number of rounds."""
    parser = argparse.ArgumentParser()
    for name in ("url", "jdbc", "jar", "psql", "ways"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("upto", "rows", "rounds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--conf", action="append", default=[], type=lambda text: tuple(text.split("=", 1)))
    asked = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="gapless-spark-bench-"))
    ways = Ways(asked, home)
    try:
        _ = ways.session
        for _ in range(asked.rounds):
            for way in asked.ways.split(","):
                print(json.dumps(measure(ways, way, getattr(ways, way))), flush=True)
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
