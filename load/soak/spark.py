"""Spark as one of the readers, in its own process: after each batch it prints what it got.

`python -m load.soak.spark query|reader URL`: a query of Structured Streaming, or only the reader behind it,
which reads the same ranges without Java.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from load.children import Child
from load.soak.proof import Ordered
from load.spark import __name__ as _path_to_the_package  # noqa: F401 (it is in this checkout)
from load.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("id", "channel", "seq")
PATTERN = "soak.>"
A_TRIGGER = 100_000
PAUSE_S = 0.2


class Spark:
    """The process, and its last report."""

    def __init__(self, how: str, url: str, log: Path) -> None:
        command = [sys.executable, "-P", "-m", "load.soak.spark", how, url]
        environment = {"PYTHONWARNINGS": "ignore", "PYTHONPATH": str(Path(__file__).parents[2])}
        self.patterns = (PATTERN,)
        self.odd: list[str] = []
        self._child = Child(command, log, environment).start()
        self._log = log
        self._at = 0
        self._proof = Ordered("Spark")
        self._began = False

    @property
    def proof(self) -> Ordered:
        """What it has got, from its last report. An end of the process is an error."""
        with self._log.open("rb") as file:
            file.seek(self._at)
            printed = file.read()
        whole = printed[: printed.rfind(b"\n") + 1]
        self._at += len(whole)
        books = [line for line in whole.splitlines() if line.startswith(b'{"name"')]
        self._began = self._began or bool(books)
        if books:
            self._proof = Ordered.from_json(msgspec.json.decode(books[-1]))
        if self._child.code() is not None and not self.odd:
            self.odd.append(f"Spark ended with {self._child.code()}: {self._child.tail(1)}")
        return self._proof

    async def wait_ready(self, patience_s: float = 3 * PATIENCE_S) -> None:
        """Wait until it has begun. Raises RuntimeError if it ends or takes longer."""
        await until(lambda: self.proof.taken or self._began or self.odd, "Spark begins", patience_s)
        if self.odd:
            raise RuntimeError(f"Spark does not begin: {self._child.tail()}")

    def stop(self) -> None:
        """End it and all it started."""
        self._child.stop()


def note(proof: Ordered, rows: pa.Table) -> None:
    """Check a batch, and print the state. Rows of a batch come in any order, so they are sorted first."""
    for row in rows.select(list(COLUMNS)).sort_by("id").to_pylist():
        proof.take(row["id"], row["channel"], row["seq"])
    tell(proof)


def tell(proof: Ordered) -> None:
    """Print the state on one line."""
    sys.stdout.buffer.write(msgspec.json.encode(proof.to_json()) + b"\n")
    sys.stdout.buffer.flush()


def query(url: str) -> None:
    """Run Structured Streaming from the first message on."""
    import gapless_spark
    from gapless_spark.session import SessionOptions, start

    proof = Ordered("Spark")
    spark = start(SessionOptions("soak", "local[2]", quick=True, archive=True))
    gapless_spark.register(spark)
    tell(proof)
    source = spark.readStream.format("gapless").option("url", url).option("channels", PATTERN)
    source = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", A_TRIGGER)
    rows = source.load().select(*COLUMNS)
    with tempfile.TemporaryDirectory(prefix="gapless-soak-") as folder:
        writing = rows.writeStream.foreachBatch(lambda batch, _: note(proof, batch.toArrow()))
        writing.option("checkpointLocation", folder).start().awaitTermination()


def reader(url: str) -> None:
    """Run the reader of such a query in a loop, without Spark."""
    import pyarrow as pa
    from gapless_spark.columns import spark_schema
    from gapless_spark.options import read_options
    from gapless_spark.stream import GaplessStreamReader
    from pyspark.sql.streaming.datasource import ReadMaxRows

    proof = Ordered("Spark")
    options = {"url": url, "channels": PATTERN, "startingOffsets": "earliest"}
    stream = GaplessStreamReader(read_options(options, streaming=True), spark_schema(), 2)
    tell(proof)
    at: dict[str, Any] = stream.initialOffset()
    while True:
        upto = stream.latestOffset(at, ReadMaxRows(A_TRIGGER))
        batches = [b for part in stream.partitions(at, upto) for b in stream.read(part)]
        if batches:
            note(proof, pa.Table.from_batches(batches))
        at = upto
        time.sleep(PAUSE_S)


def main() -> None:
    """Run until stopped."""
    how, url = sys.argv[1:]
    {"query": query, "reader": reader}[how](url)


if __name__ == "__main__":
    main()
