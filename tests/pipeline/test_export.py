"""The export job over a real log, with real tasks: everything once, in every format, whatever happened."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from gapless_spark.errors import BadOption, DataLoss, OtherLog, Unsettled
from gapless_spark.export import batch, delta
from gapless_spark.export.command import Asked
from gapless_spark.export.errors import FolderBusy, FolderTaken, OtherExport
from gapless_spark.export.folder import sync_file
from gapless_spark.export.job import Export
from gapless_spark.export.ledger import Entry, Ledger
from gapless_spark.export.options import ExportOptions, Format, Shape
from gapless_spark.export.preview import look
from gapless_spark.export.progress import Silent
from gapless_spark.selection import Selection
from gapless_spark.watermark import settled

from tests.pipeline.conftest import Log
from tests.pipeline.exporting import read, stored

pytestmark = pytest.mark.spark
Run = Callable[..., Entry]


FORMATS = ["parquet", *[pytest.param(name, marks=pytest.mark.drill) for name in ("delta", "iceberg")]]


@pytest.fixture
def run(log: Log, tmp_path: Path) -> Run:
    """Runs the export of the test's log into `tmp_path / "out"`."""

    def export(shape: Shape | None = None, **more: Any) -> Entry:
        return Export(
            options(log, tmp_path, shape, **more), lambda: log.spark, Silent(), threading.Event()
        ).run()

    return export


def options(log: Log, tmp_path: Path, shape: Shape | None = None, **more: Any) -> ExportOptions:
    return ExportOptions(log.url, tmp_path / "out", shape or Shape(), **more)


def fill(log: Log, count: int = 20) -> None:
    """Text and binary messages in three channels, some of them of the day before."""
    for channel in ("chat.a", "chat.b:c", "other"):
        log.owner.append(channel, [f'{{"n":{n}}}' for n in range(count)], headers='{"h": "1"}', key="k")
        log.owner.append(channel, [b"\x00\xff", b""])
    log.owner.execute(
        "update gapless.messages set created_at = created_at - interval '1 day' where id % 2 = 0"
    )


@pytest.mark.parametrize("by_channel", [False, pytest.param(True, marks=pytest.mark.drill)])
@pytest.mark.parametrize("format_", FORMATS)
def test_every_message_is_there_once_run_after_run(
    log: Log, run: Run, tmp_path: Path, format_: Format, by_channel: bool
) -> None:
    shape = Shape(format_, by_channel)
    fill(log)
    assert run(shape).totals.rows == 66
    assert read(tmp_path / "out", format_) == stored(log)
    fill(log, 3)
    last = run(shape)
    assert (last.rows, last.totals.rows) == (15, 81)
    assert run(shape) == last  # nothing new
    assert read(tmp_path / "out", format_) == stored(log)


def test_channels_that_look_like_numbers_stay_what_they_are_for_arrow(
    log: Log, run: Run, tmp_path: Path
) -> None:
    """Its reader takes a folder `channel=007` for the number 7."""
    names = ("007", "7", "1e3", "true", "2026-01-01")
    for name in names:
        log.owner.append(name, ["1", "2"])
    run(Shape(by_channel=True))
    found = ds.dataset(tmp_path / "out", format="parquet", partitioning="hive").to_table()
    assert found.schema.field("channel").type == pa.string()
    assert Counter(found.column("channel").to_pylist()) == dict.fromkeys(names, 2)


def test_small_batches_extend_the_file_of_their_day(log: Log, run: Run, tmp_path: Path) -> None:
    for n in range(4):
        log.owner.append("a", [str(n)] * 5)
        run()
    (file,) = (tmp_path / "out").rglob("*.parquet")
    assert file.parent.name == f"date={datetime.now(UTC):%Y-%m-%d}"
    assert read(tmp_path / "out", "parquet") == stored(log)
    found = log.spark.read.parquet(str(tmp_path / "out"))
    assert found.count() == 20
    assert "date" in found.columns


@pytest.mark.parametrize("format_", ["delta", pytest.param("iceberg", marks=pytest.mark.drill)])
def test_small_files_of_a_table_are_merged(
    log: Log, run: Run, tmp_path: Path, format_: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gapless_spark.export.publish.TIER", 3)
    for n in range(4):
        log.owner.append("a", [str(n)] * 5)
        last = run(Shape(format_))
    assert last.number == 5  # four batches, and one that merged
    assert last.totals.files == 2
    assert read(tmp_path / "out", format_) == stored(log)


def test_many_batches_of_many_tasks(
    log: Log, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gapless_spark.export.batch.TASK_ROWS", 50)
    log.owner.append("a", ["1"] * 500)
    last = run(batch_rows=200, tasks=2)
    assert last.number >= 2
    assert read(tmp_path / "out", "parquet") == stored(log)


def test_a_selection_is_kept(log: Log, run: Run, tmp_path: Path) -> None:
    fill(log)
    shape = Shape(selection=Selection(patterns=("chat.>",), since=datetime(2026, 1, 1, tzinfo=UTC)))
    run(shape)
    assert read(tmp_path / "out", "parquet") == stored(log, "c.name like 'chat.%'")
    with pytest.raises(OtherExport, match="other options"):
        run(Shape())
    with pytest.raises(OtherExport, match="other options"):
        run(replace(shape, by_channel=True))


@pytest.mark.parametrize("format_", FORMATS)
def test_killed_after_the_entry_the_next_run_shows_the_batch(
    log: Log, run: Run, tmp_path: Path, format_: Format
) -> None:
    root = tmp_path / "out"
    log.owner.append("a", ["1"] * 5)
    run(Shape(format_))
    kept = tmp_path / "kept"
    shutil.copytree(root, kept)
    log.owner.append("a", ["2"] * 5)
    last = run(Shape(format_))
    # As a kill would have left it: the entry is there, the file is staged, readers see what was before.
    (file,) = last.files
    staged = kept / file.staged
    staged.parent.mkdir(parents=True)
    shutil.copy(root / file.path, staged)
    (staged.parent / "junk.part").touch()
    shutil.copy(root / f"_gapless/batches/{last.number:012d}.json", kept / "_gapless/batches")
    shutil.rmtree(root)
    shutil.move(kept, root)
    assert len(read(root, format_)) == 5
    assert run(Shape(format_)) == last
    assert read(root, format_) == stored(log)
    assert not list((root / "_gapless" / "staging").iterdir())


def test_a_folder_has_one_writer(log: Log, run: Run, tmp_path: Path) -> None:
    log.owner.append("a", ["1"])
    run()
    other = Ledger(tmp_path / "out")
    other.open()
    with pytest.raises(FolderBusy, match="another export"):
        run()
    other.close()
    run()


def test_a_file_that_somebody_removed_is_missed_in_words(log: Log, run: Run, tmp_path: Path) -> None:
    fill(log, 3)
    run()
    for file in (tmp_path / "out").glob("date=*/*.parquet"):
        file.unlink()
    with pytest.raises(OtherExport, match="is missing: it was removed after this export wrote it"):
        run()


def test_an_age_means_what_it_meant_first(log: Log, tmp_path: Path) -> None:
    """A job that a timer starts gives the same words each time."""
    fill(log, 3)
    asked = Asked(None, None, "30d", None, None, None)
    root, now = tmp_path / "out", datetime.now(UTC)
    shape = asked.shape(root, now)
    Export(options(log, tmp_path, shape), lambda: log.spark, Silent(), threading.Event()).run()
    assert asked.shape(root, now + timedelta(days=1)) == shape
    with pytest.raises(OtherExport, match="was begun with --since"):
        Asked(None, None, "2020-01-01", None, None, None).shape(root, now)
    with pytest.raises(OtherExport, match=r"was begun with --until \(none\)"):
        Asked(None, None, None, "30d", None, None).shape(root, now)


def test_what_is_no_export_is_left_alone(log: Log, run: Run, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").touch()
    with pytest.raises(FolderTaken, match=r"thesis\.txt"):
        run()
    with pytest.raises(FolderTaken, match=r"thesis\.txt"):
        look(options(log, tmp_path))


def test_another_log_and_another_layout_are_refused(log: Log, run: Run, tmp_path: Path) -> None:
    log.owner.append("a", ["1"])
    run()
    log.owner.execute("update gapless.log set epoch = gen_random_uuid()")
    log.owner.execute("update gapless.fences set epoch = (select epoch from gapless.log)")
    with pytest.raises(OtherLog, match="Export to a new folder"):
        run()
    path = tmp_path / "out" / "_gapless" / "export.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"layout": 0}))
    with pytest.raises(OtherExport, match="layout 0"):
        run()


def test_retention_that_was_faster_is_told(log: Log, run: Run, tmp_path: Path) -> None:
    log.owner.append("a", ["1"] * 5)
    run()
    log.owner.append("a", ["2"] * 5)
    log.owner.execute("update gapless.channels set max_messages = 2")
    log.owner.execute("select gapless.trim_channels(100)")
    with pytest.raises(DataLoss, match="channel a"):
        run()
    assert run(allow_loss=True).totals.rows == 7
    assert run().totals.rows == 7  # what it went on without is no loss any more


def test_a_namespace_that_is_not_there_is_no_empty_export(log: Log, run: Run, tmp_path: Path) -> None:
    log.owner.append("a", ["1"])
    nobody = Shape(selection=Selection("nobody"))
    for asked in (lambda: look(options(log, tmp_path, nobody)), lambda: run(nobody)):
        with pytest.raises(BadOption, match="there is no namespace 'nobody'"):
            asked()
    # Nothing was fixed: the right name may follow.
    assert run().totals.rows == 1


def test_a_new_export_begins_with_what_is_kept(log: Log, run: Run, tmp_path: Path) -> None:
    log.owner.append("a", ["1"] * 5)
    log.owner.execute("update gapless.channels set max_messages = 2")
    log.owner.execute("select gapless.trim_channels(100)")
    assert run().totals.rows == 2


def test_the_preview_changes_nothing(log: Log, run: Run, tmp_path: Path) -> None:
    log.owner.append("a", ["1"] * 5)
    asked = options(log, tmp_path)
    found = look(asked)
    assert (found["messages"], found["resumes"], found["after"]) == (5, False, 0)
    assert not (tmp_path / "out").exists()
    # What a first run leaves that ended before it had anything.
    (tmp_path / "out" / "_gapless" / "batches").mkdir(parents=True)
    assert look(asked) == found
    run()
    log.owner.append("a", ["1"] * 2)
    assert (look(asked)["messages"], look(asked)["resumes"], look(asked)["exported"]) == (2, True, 5)


def test_a_follower_ends_when_it_is_told(log: Log, tmp_path: Path) -> None:
    stop = threading.Event()

    class Show(Silent):
        """Publishes once more when everything is there, then stops."""

        idles = 0

        def idle(self) -> None:
            self.idles += 1
            if self.idles == 1:
                log.owner.append("a", ["2"])
            else:
                stop.set()

    log.owner.append("a", ["1"])
    asked = options(log, tmp_path, follow=True, interval_s=0.01)
    assert Export(asked, lambda: log.spark, Show(), stop).run().totals.rows == 2


def test_a_follower_waits_for_what_is_not_settled(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publisher that stays open holds up what comes after it: for a follower that is no end."""
    monkeypatch.setattr(batch, "settled", partial(settled, patience_s=0.1))
    log.owner.append("a", ["1"])
    other = log.session()
    other.execute("begin")
    other.append("b", ["2"])
    stop = threading.Event()
    told: list[str] = []

    class Show(Silent):
        """Lets the publisher commit once it was complained of."""

        def note(self, text: str) -> None:
            told.append(text)
            monkeypatch.setattr(batch, "settled", settled)  # From here on nothing is held up.
            other.execute("commit")

        def idle(self) -> None:
            stop.set()

    with pytest.raises(Unsettled):
        Export(options(log, tmp_path), lambda: log.spark, Silent(), stop).run()
    asked = options(log, tmp_path, follow=True, interval_s=0.01)
    assert Export(asked, lambda: log.spark, Show(), stop).run().totals.rows == 2
    assert len(told) == 1
    assert "not settled" in told[0]


def test_stopped_in_the_last_batch_it_is_complete(log: Log, tmp_path: Path) -> None:
    stop = threading.Event()

    class Show(Silent):
        """Stops within the first batch, which ends all the same."""

        def batch(self, progress: object) -> None:
            stop.set()

    log.owner.append("a", ["1"] * 3)
    whole = Export(options(log, tmp_path), lambda: log.spark, Show(), stop)
    assert (whole.run().totals.rows, whole.complete) == (3, True)
    begun = Export(options(log, tmp_path), lambda: log.spark, Silent(), stop)
    assert (begun.run().totals.rows, begun.complete) == (3, False)


def test_a_commit_of_a_table_is_on_disk(
    log: Log, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def sync(path: Path) -> None:
        sync_file(path)
        synced.append(path.name)

    monkeypatch.setattr(delta, "sync_file", sync)
    log.owner.append("a", ["1"])
    run(Shape("delta"))
    run(Shape("delta"))
    # The table, the batch, and both again when it was opened and the batch looked at again.
    assert [name[19] for name in synced] == ["0", "1", "1", "1"]


def test_metadata_of_a_table_is_on_disk(
    log: Log, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its catalog is SQLite's, which is: it must not name what a loss of power took."""
    sync = os.fsync
    synced: set[str] = set()

    def told(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", told)
    log.owner.append("a", ["1"])
    run(Shape("iceberg"))
    written = {path.name for path in (tmp_path / "out" / "metadata").iterdir()} - {"version-hint.text"}
    assert len(written) == 4  # the table, the batch, its list of manifests, and the one manifest
    assert {str(tmp_path / "out" / "metadata" / name) for name in written} <= synced
    assert str(tmp_path / "out") in synced
