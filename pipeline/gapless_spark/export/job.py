"""Runs an export batch by batch. Each batch counts exactly once, even if a process is killed at any moment.

    settle -> plan -> tasks write staged files -> entry in the books (the batch counts) -> shown to readers

After a kill before the entry, the batch's files are removed and its ids are read again. After a kill behind
the entry, the next run first shows the batch to readers.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gapless_spark.database import close, connect
from gapless_spark.errors import DatabaseUnreachable, SnapshotGone, Unsettled
from gapless_spark.export import task
from gapless_spark.export.batch import Plan, at_most, entry, gather, planned
from gapless_spark.export.errors import OtherExport, SparkFailed, from_os, from_spark
from gapless_spark.export.formats import publisher
from gapless_spark.export.ledger import Charter, Entry, Ledger, Totals
from gapless_spark.export.options import ExportOptions
from gapless_spark.export.publish import Publisher
from gapless_spark.export.view import View
from gapless_spark.history import check_history, epoch_of
from gapless_spark.planning import id_before
from gapless_spark.ranges import Range
from gapless_spark.retention import marks_beyond

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection
    from pyspark.sql import SparkSession

RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)
LOOK_S = 0.3


@dataclass(frozen=True, slots=True)
class Progress:
    """The state after a batch: its entry, its duration, and an upper bound of the messages still to
    export."""

    entry: Entry
    seconds: float
    behind: int


class Show(Protocol):
    """Receives the progress of an export."""

    def note(self, text: str) -> None: ...
    def begin(self, entry: Entry, behind: int) -> None: ...
    def writing(self, staged_bytes: int) -> None: ...
    def batch(self, progress: Progress) -> None: ...
    def idle(self) -> None: ...


class Export:
    """One run over one folder. `stop` ends it after the batch under way."""

    def __init__(
        self, options: ExportOptions, spark: Callable[[], SparkSession], show: Show, stop: threading.Event
    ) -> None:
        self._options = options
        self._make_spark = spark
        self._spark: SparkSession | None = None
        self._show = show
        self._stop = stop
        self._ledger = Ledger(options.root)
        self._connection: Connection | None = None
        self._last: Entry | None = None
        """The last batch that counts. The next batch follows it, even if a later step of it failed."""
        self.complete = False
        """Whether a run that does not follow has exported everything."""

    def run(self) -> Entry:
        """Export until everything is exported; a follower runs until it is stopped. Returns the last batch
        that counts.

        Raises `GaplessSparkError`. After an error the folder is consistent, and a later run continues.
        """
        try:
            self._ledger.open()
            charter, self._last = self._prepare()
            latest = self._options.latest
            view = None if latest is None else View(latest, charter)
            shown = publisher(self._options.root, charter)
            if self._last.number:
                shown.apply(self._last)
            self._ledger.sweep()
            self._batches(shown)
            if view is not None and self.complete:
                # Where nothing is selected, the position moves without a message.
                upto = (self._ledger.last() or self._last).upper
                view.make(upto, shown.files(), self._session)
            return self._last
        except OSError as error:
            raise from_os(error, str(self._options.root)) from error
        finally:
            self._disconnect()
            self._ledger.close()

    def _prepare(self) -> tuple[Charter, Entry]:
        charter = self._ledger.charter()
        if charter is not None:
            self._check(charter)
        else:
            charter = self._first()
            self._ledger.begin(charter)
        last = self._ledger.last()
        return charter, last or Entry(0, charter.start, charter.start, 0, charter.known, Totals())

    def _first(self) -> Charter:
        """The charter that this first run fixes. Its times are absolute, also those that were given as
        ages."""
        connection, shape = self._connected(), self._options.shape
        shape.selection.check_namespace(connection)
        since = shape.selection.since
        start = id_before(connection, since) if since is not None else 0
        known = marks_beyond(connection, shape.selection, start)
        return Charter(uuid.uuid4().hex, epoch_of(connection), start, known, shape)

    def _check(self, charter: Charter) -> None:
        if charter.shape != self._options.shape:
            raise OtherExport(
                f"{self._options.root} holds an export with other options: give the same ones, or none"
            )
        # A follower waits for a database that is down, so it checks the history with its first batch.
        if not self._options.follow:
            last = self._ledger.last()
            self._check_history(charter.epoch, charter.start if last is None else last.upper)

    def _check_history(self, known: str, reached: int) -> None:
        check_history(
            self._connected(),
            known,
            reached,
            what=f"The export in {self._options.root}",
            fail_on_loss=not self._options.allow_loss,
            advice="Export to a new folder",
        )

    def _batches(self, shown: Publisher) -> None:
        failures = 0
        target: int | None = None
        checked = False
        assert self._last is not None
        while not self._stop.is_set():
            try:
                if not checked:
                    self._check_history(self._epoch(), self._last.upper)
                    self._show.begin(self._last, self._behind(self._last.upper))
                    checked = True
                top = self._batch(shown, target)
            except (DatabaseUnreachable, SnapshotGone, Unsettled) as error:
                self._disconnect()
                if not self._options.follow:
                    raise
                # So the staged files of failed attempts take no more room than one batch.
                self._ledger.sweep()
                pause = RETRY_S[min(failures, len(RETRY_S) - 1)]
                failures += 1
                self._show.note(f"{error}; trying again in {pause:g} s")
                self._stop.wait(pause)
                continue
            failures = 0
            if not self._options.follow:
                # Messages published from now on are left to the next run.
                target = top
                if self._last.upper >= target:
                    self.complete = True
                    break
            elif self._last.upper >= top:
                self._show.idle()
                self._stop.wait(self._options.interval_s)

    def _epoch(self) -> str:
        charter = self._ledger.charter()
        assert charter is not None
        return charter.epoch

    def _batch(self, shown: Publisher, most: int | None) -> int:
        """Export one batch, if any message is selected. Returns the highest id that can be read now."""
        began_at, last = time.monotonic(), self._last
        assert last is not None
        with planned(self._connected(), self._options, last.upper, last.known, most) as plan:
            if not plan.parts:
                # No message is selected there. The position moves in memory only, because no file depends on
                # it.
                self._last = replace(last, upper=plan.upper, known=plan.known)
                return plan.top
            files = gather(self._tasks(last, shown, plan))
            behind = self._behind(plan.upper) if plan.upper < plan.top else 0
        made = entry(last, plan.upper, plan.known, files, self._options.file_bytes)
        self._count(made, shown)
        self._show.batch(Progress(made, time.monotonic() - began_at, behind))
        if merges := shown.merges(made):
            files = gather(self._run(made, (), "", merges))
            self._count(entry(made, made.upper, made.known, files, self._options.file_bytes), shown)
        return plan.top

    def _count(self, made: Entry, shown: Publisher) -> None:
        self._ledger.count(made)
        self._last = made
        shown.apply(made)

    def _tasks(self, last: Entry, shown: Publisher, plan: Plan) -> list[str]:
        root = self._options.root
        # A file that was removed by hand is ignored: later rows go into a new one.
        open_ = {
            key: tuple(file for file in files if (root / file.path).is_file())
            for key, files in last.open.items()
        }
        extensions = {key: shown.extensions(files) for key, files in open_.items()}
        return self._run(last, plan.parts, plan.snapshot, extensions)

    def _run(
        self,
        last: Entry,
        parts: tuple[Range, ...],
        snapshot: str,
        extensions: dict[str, tuple[task.Extension, ...]],
    ) -> list[str]:
        work = task.Work(
            url=self._options.url,
            snapshot=snapshot,
            root=str(self._options.root),
            staging=self._ledger.staging,
            shape=self._options.shape,
            number=last.number + 1,
            ranges=tuple((part.lower, part.upper) for part in parts),
            file_bytes=self._options.file_bytes,
            extensions=extensions,
        )
        with self._watched():
            return run_tasks(self._session(), work)

    def _session(self) -> SparkSession:
        if self._spark is None:
            self._spark = self._make_spark()
        return self._spark

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Report the number of staged bytes every 0.3 s while the block runs."""
        done = threading.Event()
        folder = self._options.root / self._ledger.staging

        def look() -> None:
            while not done.wait(LOOK_S):
                self._show.writing(size_of(folder))

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _behind(self, position: int) -> int:
        return at_most(self._connected(), self._options.shape.selection, Range(position, 2**53 - 1))

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = connect(self._options.url)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            close(self._connection)
            self._connection = None


def run_tasks(spark: SparkSession, work: task.Work) -> list[str]:
    """Run one Spark job with a task for each range of the batch. Returns the tasks' answers. Raises
    `SparkFailed`."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]
    from pyspark.errors import PySparkException
    from pyspark.sql.functions import udf

    count = max(1, len(work.ranges))
    try:
        # A plain function of a row, because functions over Arrow need pandas installed.
        ask = udf(partial(task.run, work), task.ANSWERS, useArrow=False).asNondeterministic()
        rows_ = spark.range(0, count, 1, count).select(ask("id").alias("answers")).collect()
    except PySparkException as error:
        raise from_spark(str(error)) from error
    except (Py4JError, OSError, EOFError) as error:
        # The connection to Spark's Java failed. An `OSError` here says nothing about the export's folder.
        raise SparkFailed(
            f"Spark's Java process ended ({type(error).__name__}): it was killed or ran out of memory."
            " Run the same command again to continue"
        ) from error
    return [answer for row in rows_ for answer in row["answers"]]


def size_of(folder: Path) -> int:
    """The bytes of all files in a folder. A file that vanishes meanwhile is not counted."""
    total = 0
    for path in folder.glob("*"):
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total
