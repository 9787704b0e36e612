"""Copies the live log into files for a Spark on the same machine.

The data source starts a Python process for each task and for each step of its planning. That takes longer
than reading a hundred thousand messages. So if Spark runs on this machine, this process reads the messages
while Spark starts. Otherwise the data source reads them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from gapless_spark.analyze.question import Question
from gapless_spark.columns import arrow_schema
from gapless_spark.options import read_options
from gapless_spark.planning import plan_batch
from gapless_spark.reading import Part, read_range

if TYPE_CHECKING:
    import pyarrow as pa

    from gapless_spark.options import ReadOptions

NEEDED = ("id", "channel", "seq", "type", "data", "sender", "created_at")
"""The columns that figures are counted from, in the order of the source."""


FEW_MESSAGES = 20_000
FEW_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Size:
    """The number of messages that were copied, and their size in memory."""

    messages: int
    bytes: int

    @property
    def few(self) -> bool:
        """Whether this process may hold all messages. Spark's overhead for keeping them would be larger."""
        return self.messages < FEW_MESSAGES and self.bytes < FEW_BYTES

    @staticmethod
    def of(parts: Iterable[Size]) -> Size:
        """The sum of several sizes."""
        known = list(parts)
        return Size(sum(part.messages for part in known), sum(part.bytes for part in known))


def source_options(question: Question) -> dict[str, str]:
    """The options of the data source for a question to the live log."""
    assert question.url is not None
    # No start is set without `since`: a batch begins at the earliest message, and two starts are an error.
    options = {"url": question.url, "namespace": question.namespace}
    if question.channels:
        options["channels"] = question.channels
    # A time inside `data` is known only after the message was read.
    if question.fields.time is None:
        if question.since:
            options["startingTimestamp"] = question.since.isoformat()
        if question.until:
            options["endingTimestamp"] = question.until.isoformat()
    return options


class Copy:
    """The messages of a question, in a temporary folder until the block ends. They are read in the background
    from the start."""

    def __init__(self, question: Question, tasks: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gapless-analyze-"))
        self._options = read_options(source_options(question))
        self._tasks = tasks
        self._threads = ThreadPoolExecutor(tasks + 1, thread_name_prefix="copy")
        self._size: Future[Size] = self._threads.submit(self._read)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def size(self) -> Size:
        """Wait until everything is copied, and return its size. Raises the error of a read that failed."""
        return self._size.result()

    def table(self) -> pa.Table:
        """All messages, with the columns of NEEDED. Only if there are `few`."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        assert self.size().few
        files = sorted(self.folder.iterdir())
        return pa.concat_tables([arrow_schema(NEEDED).empty_table(), *map(pq.read_table, files)])

    def _read(self) -> Size:
        parts = plan_batch(self._options, self._tasks)
        files = [self.folder / f"{n}.parquet" for n in range(len(parts))]
        return Size.of(self._threads.map(copy_part, [self._options] * len(parts), parts, files))


def copy_part(options: ReadOptions, part: Part, file: Path) -> Size:
    """Write the messages of a part into a file. Returns their size. Raises the errors of `read_range`."""
    import pyarrow.parquet as pq

    messages = size = 0
    batches = read_range(options.url, options.selection, NEEDED, part.value, known=part.known)
    with pq.ParquetWriter(file, arrow_schema(NEEDED), compression="snappy") as writer:
        for batch in batches:
            writer.write_batch(batch)
            messages += batch.num_rows
            size += batch.nbytes
    return Size(messages, size)
