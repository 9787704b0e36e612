"""What a batch needs from the moment on at which it counts: kept until it is shown, whatever ends the run."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from gapless_spark.export import folder, job, ledger
from gapless_spark.export.errors import FolderRefused
from gapless_spark.export.job import Export
from gapless_spark.export.ledger import Entry, Ledger, Published, Totals
from gapless_spark.export.options import ExportOptions, Format, Shape
from gapless_spark.export.progress import Silent
from gapless_spark.export.publish import put_in_place

from tests.pipeline.conftest import Log
from tests.pipeline.exporting import read, stored

TERMINATE = (
    "select pg_terminate_backend(pid) from pg_stat_activity"
    " where datname = current_database() and application_name = 'gapless-spark'"
)


def opened(root: Path) -> Ledger:
    books = Ledger(root)
    books.open()
    books.sweep()
    return books


def staged(books: Ledger, name: str) -> Path:
    path = books.root / books.staging / name
    path.write_text(name)
    return path


def entry(books: Ledger, file: Path) -> Entry:
    made = Published(
        staged=str(file.relative_to(books.root)),
        path=f"date=2026-11-20/{file.stem}.parquet",
        rows=1,
        bytes=file.stat().st_size,
        groups=1,
        date="2026-11-20",
        channel=None,
        first_id=1,
        last_id=1,
    )
    return Entry(1, 0, 1, 1, "", Totals(1, 1, made.bytes), (made,))


def test_what_counts_and_is_not_shown_outlives_the_run(tmp_path: Path) -> None:
    books = opened(tmp_path)
    file, junk = staged(books, "a.part"), staged(books, "junk.part")
    books.count(entry(books, file))
    books.close()
    assert file.is_file()
    assert not junk.exists()
    # Nor does a sweep take it, whoever calls it and when.
    later = opened(tmp_path)
    last = later.last()
    assert last is not None
    assert file.is_file()
    put_in_place(tmp_path, last.files)
    later.sweep()
    assert (tmp_path / last.files[0].path).read_text() == "a.part"
    assert not file.parent.exists()
    later.close()


def test_what_does_not_count_goes_with_the_run(tmp_path: Path) -> None:
    books = opened(tmp_path)
    file = staged(books, "a.part")
    books.close()
    assert not file.parent.exists()


@pytest.mark.parametrize("raised", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
def test_an_entry_of_which_it_is_not_known_whether_it_counts_is_one_that_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException
) -> None:
    books = opened(tmp_path)
    file = staged(books, "a.part")

    def sync(path: Path) -> None:
        if path.name == "batches":
            raise raised

    monkeypatch.setattr(folder, "sync_folder", sync)
    monkeypatch.setattr(ledger, "sync_folder", sync)
    with pytest.raises(type(raised)):
        books.count(entry(books, file))
    books.close()
    assert file.is_file()


def test_books_that_cannot_be_read_take_nothing_with_them(tmp_path: Path) -> None:
    books = opened(tmp_path)
    file = staged(books, "a.part")
    books.count(entry(books, file))
    (path,) = (books.home / "batches").iterdir()
    path.write_text("{")
    books.close()
    assert file.is_file()


def exporting(log: Log, root: Path, stop: threading.Event | None = None, **more: Any) -> Export:
    shape, show = more.pop("shape", Shape()), more.pop("show", Silent())
    options = ExportOptions(log.url, root, shape, **more)
    return Export(options, lambda: log.spark, show, stop or threading.Event())


@pytest.mark.spark
@pytest.mark.parametrize("format_", ["parquet", "delta", "iceberg"])
def test_a_batch_that_counts_and_could_not_be_shown_is_shown_by_the_next_run(
    log: Log, tmp_path: Path, format_: Format
) -> None:
    root, shape = tmp_path / "out", Shape(format_)
    exporting(log, root, shape=shape).run()
    log.owner.append("a", ["1"] * 5)
    # The folder of the day cannot be made.
    in_the_way = root / f"date={datetime.now(UTC):%Y-%m-%d}"
    in_the_way.touch()
    with pytest.raises(FolderRefused, match="cannot be written"):
        exporting(log, root, shape=shape).run()
    in_the_way.unlink()
    assert exporting(log, root, shape=shape).run().totals.rows == 5
    assert read(root, format_) == stored(log)


class Idle(Silent):
    """Ends a follower once it has everything, after what `first` does at the first such moment."""

    def __init__(self, stop: threading.Event, first: Callable[[], object] = lambda: None) -> None:
        self.stop, self.first, self.idles = stop, first, 0
        self.told: list[str] = []

    def note(self, text: str) -> None:
        self.told.append(text)

    def idle(self) -> None:
        self.idles += 1
        if self.idles == 1:
            self.first()
        else:
            self.stop.set()


@pytest.mark.spark
def test_a_database_that_goes_once_a_batch_counts_doubles_nothing(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gapless_spark.export.batch.TASK_ROWS", 50)
    log.owner.append("a", ["1"] * 500)
    count = Ledger.count

    def counted(books: Ledger, made: Entry) -> None:
        count(books, made)
        if made.number == 1:
            log.owner.execute(TERMINATE)

    monkeypatch.setattr(Ledger, "count", counted)
    monkeypatch.setattr(job, "RETRY_S", (0.0,))
    stop = threading.Event()
    follower = exporting(
        log,
        tmp_path / "out",
        stop,
        show=Idle(stop),
        follow=True,
        interval_s=0.01,
        batch_rows=200,
    )
    assert follower.run().totals.rows == 500
    assert read(tmp_path / "out", "parquet") == stored(log)


@pytest.mark.spark
def test_a_follower_outlives_the_end_of_its_connection(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two batches, and within one."""
    monkeypatch.setattr(job, "RETRY_S", (0.0,))
    run_tasks, ran = job.run_tasks, list[int]()

    def run(*arguments: Any) -> list[str]:
        answers = run_tasks(*arguments)
        ran.append(len(answers))
        if len(ran) == 2:
            log.owner.execute(TERMINATE)
        return answers

    def between() -> None:
        log.owner.execute(TERMINATE)
        log.owner.append("a", ["2"] * 3)

    monkeypatch.setattr(job, "run_tasks", run)
    log.owner.append("a", ["1"] * 5)
    stop = threading.Event()
    show = Idle(stop, between)
    last = exporting(log, tmp_path / "out", stop, show=show, follow=True, interval_s=0.01).run()
    assert last.totals.rows == 8
    assert len(ran) >= 2
    assert any("trying again" in text for text in show.told)
    assert read(tmp_path / "out", "parquet") == stored(log)


@pytest.mark.spark
def test_a_batch_that_was_committed_and_not_pointed_to_is_pointed_to(log: Log, tmp_path: Path) -> None:
    """Readers without a catalog go by the hint, which is written after the commit."""
    root, shape = tmp_path / "out", Shape("iceberg")
    log.owner.append("a", ["1"])
    exporting(log, root, shape=shape).run()
    hint = root / "metadata" / "version-hint.text"
    right = hint.read_text()
    hint.write_text("older")
    exporting(log, root, shape=shape).run()
    assert hint.read_text() == right
