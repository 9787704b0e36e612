"""The live log, read by this process into files that a Spark on the same machine reads.

A task of the data source is a Python process of its own, and so is each step of its planning: to start them
takes longer than to read a hundred thousand messages. So where Spark runs here this process reads, while
Spark starts. Elsewhere the data source does it.
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
    """How many messages were copied, and how much memory they take."""

    messages: int
    bytes: int

    @property
    def few(self) -> bool:
        """Whether a process may hold them all, and Spark's own ways of keeping rows cost more than they."""
        return self.messages < FEW_MESSAGES and self.bytes < FEW_BYTES

    @staticmethod
    def of(parts: Iterable[Size]) -> Size:
        """All parts together."""
        known = list(parts)
        return Size(sum(part.messages for part in known), sum(part.bytes for part in known))


def source_options(question: Question) -> dict[str, str]:
    """The options of the data source for what is asked of the live log."""
    assert question.url is not None
    # A batch begins at the earliest message unless told otherwise; both beginnings together are an error.
    options = {"url": question.url, "namespace": question.namespace}
    if question.channels:
        options["channels"] = question.channels
    # The time inside of data is known only after the message was read.
    if question.fields.time is None:
        if question.since:
            options["startingTimestamp"] = question.since.isoformat()
        if question.until:
            options["endingTimestamp"] = question.until.isoformat()
    return options


class Copy:
    """The messages that a question asks for, in a temporary folder until the block ends. Reading begins at
    once, beside whatever else is done."""

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
        """How much there is, once all of it is in the folder. Raises what reading raised."""
        return self._size.result()

    def table(self) -> pa.Table:
        """All messages, in the columns of NEEDED. For few."""
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
    """Write the messages of a part into a file; how much it is. Raises what `read_range` raises."""
    import pyarrow.parquet as pq

    messages = size = 0
    batches = read_range(options.url, options.selection, NEEDED, part.value, known=part.known)
    with pq.ParquetWriter(file, arrow_schema(NEEDED), compression="snappy") as writer:
        for batch in batches:
            writer.write_batch(batch)
            messages += batch.num_rows
            size += batch.nbytes
    return Size(messages, size)
