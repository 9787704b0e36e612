"""Files of an export: row groups, extension, partitions, and names. Without Spark and Postgres."""

from __future__ import annotations

import errno
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gapless_spark.columns import CHANGE_COLUMNS, all_columns, arrow_schema
from gapless_spark.errors import DataLoss
from gapless_spark.export import ledger
from gapless_spark.export.batch import still_open
from gapless_spark.export.errors import (
    DiskFull,
    FolderRefused,
    OtherExport,
    from_os,
    from_wire,
    to_wire,
)
from gapless_spark.export.folder import channel_folder, partition_folder
from gapless_spark.export.iceberg import Iceberg
from gapless_spark.export.ledger import (
    Charter,
    Entry,
    Ledger,
    Open,
    Published,
    Totals,
    charter_json,
    read_charter,
)
from gapless_spark.export.options import Shape
from gapless_spark.export.partitioning import split_batch
from gapless_spark.export.parts import Part
from gapless_spark.export.publish import TIER, Plain, put_in_place, tier
from gapless_spark.export.task import Extension, Work, Writer
from hypothesis import example, given
from hypothesis import strategies as st

COLUMNS = all_columns(binary=True, changes=True)
DAY = datetime(2026, 11, 20, 12, tzinfo=UTC)


def batch(first: int, last: int, channels: int = 1, at: datetime = DAY, **step: Any) -> pa.RecordBatch:
    """Messages `first` to `last`; a further one comes `step` later."""
    ids = range(first, last + 1)
    gap = timedelta(**step)
    rows = {
        "id": list(ids),
        "channel": [f"c{id_ % channels}" for id_ in ids],
        "seq": list(ids),
        "type": ["message"] * len(ids),
        "key": [None] * len(ids),
        "data": [f'{{"n":{id_}}}' for id_ in ids],
        "headers": [[("a", "b")] if id_ % 2 else None for id_ in ids],
        "sender": [None] * len(ids),
        "created_at": [at + gap * n for n in range(len(ids))],
        "binary": [None] * len(ids),
        **{name: [None] * len(ids) for name in CHANGE_COLUMNS},
    }
    return pa.RecordBatch.from_pydict(rows, schema=arrow_schema(COLUMNS))


def table(first: int, last: int) -> pa.Table:
    return pa.Table.from_batches([batch(first, last)])


def ids_of(path: Path) -> list[int]:
    ids: list[int] = pq.ParquetFile(path).read(columns=["id"]).column("id").to_pylist()
    return ids


def test_a_file_is_extended_and_its_old_bytes_stay(tmp_path: Path) -> None:
    old = Part(tmp_path / "old.part", COLUMNS)
    old.write(table(1, 100))
    old.sync()
    new = Part(tmp_path / "new.part", COLUMNS)
    new.extend(old.path)
    new.write(table(101, 150))
    new.write(table(151, 160))
    new.sync()
    assert ids_of(new.path) == list(range(1, 161))
    assert (new.rows, new.groups, new.first_id, new.last_id) == (160, 3, 1, 160)
    assert ids_of(old.path) == list(range(1, 101))
    # Who listed the folder before goes by the old length, and reads the old file.
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(new.path.read_bytes()[: old.bytes])
    assert ids_of(cut) == list(range(1, 101))
    assert pq.ParquetFile(new.path).read().slice(100).to_pylist() == table(101, 160).to_pylist()


def test_a_finished_file_goes_on(tmp_path: Path) -> None:
    part = Part(tmp_path / "a.part", COLUMNS)
    for first in (1, 11, 21):
        part.write(table(first, first + 9))
        part.finish()
    assert ids_of(part.path) == list(range(1, 31))
    assert [path.name for path in tmp_path.iterdir()] == ["a.part"]


def test_days_and_channels_are_taken_apart() -> None:
    both = list(split_batch(batch(1, 48, channels=2, hours=1), by_channel=True))
    assert [key for key, _ in both] == [
        ("2026-11-20", "c0"),
        ("2026-11-20", "c1"),
        ("2026-11-21", "c0"),
        ("2026-11-21", "c1"),
        ("2026-11-22", "c0"),
        ("2026-11-22", "c1"),
    ]
    assert sorted(id_ for _, rows in both for id_ in rows.column("id").to_pylist()) == list(range(1, 49))
    for (date, channel), rows in both:
        assert rows.column("id").to_pylist() == sorted(rows.column("id").to_pylist())
        assert set(rows.column("channel").to_pylist()) == {channel}
        assert {str(at.date()) for at in rows.column("created_at").to_pylist()} == {date}


def test_a_batch_of_one_day_passes_as_it_is() -> None:
    whole = batch(1, 5)
    ((key, rows),) = split_batch(whole, by_channel=False)
    assert key == ("2026-11-20", None)
    assert rows is whole
    assert list(split_batch(batch(1, 0), by_channel=True)) == []


@pytest.mark.parametrize(
    ("channel", "folder"),
    [
        ("chat.a", "c.chat.a"),
        ("007", "c.007"),
        ("_x-1@y", "c._x-1@y"),
        ("a:b~c", "c.a~3ab~7ec"),
        ("Ab", "c.~41b"),
        ("a%b=é", "c.a~25b~3d~c3~a9"),
        (
            "__HIVE_DEFAULT_PARTITION__",
            "c.__~48~49~56~45_~44~45~46~41~55~4c~54_" + "~50~41~52~54~49~54~49~4f~4e__",
        ),
    ],
)
def test_folders_of_channels_can_be_read_by_people(channel: str, folder: str) -> None:
    assert channel_folder(channel) == folder
    assert partition_folder("2026-11-20", channel) == f"date=2026-11-20/{folder}"


NAMES = st.from_regex(r"[A-Za-z0-9_~:@-]{1,255}(\.[A-Za-z0-9_~:@-]{1,20}){0,3}", fullmatch=True).map(
    lambda name: name[:255].rstrip(".")
)


@given(names=st.sets(NAMES, min_size=2, max_size=5))
@example(names={"c" * 255, "c" * 254, "C" * 255, "c" * 254 + "C"})
@example(names={"007", "7", "07"})
@example(names={"Chat", "chat", "CHAT"})
def test_no_two_channels_share_a_folder_on_any_file_system(names: set[str]) -> None:
    folders = [channel_folder(name) for name in names]
    assert len({folder.casefold() for folder in folders}) == len(names)
    for folder in folders:
        assert len(folder.encode()) <= 120
        assert re.fullmatch(r"c\.[a-z0-9._@~-]*[a-z0-9_@~-]", folder)


def work(root: Path, shape: Shape, **more: Any) -> Work:
    (root / "staging").mkdir()
    return Work("", "", str(root), "staging", shape, 1, ((0, 1),), **{"file_bytes": 1 << 20, **more})


def published(answers: list[dict[str, Any]]) -> tuple[Published, ...]:
    return tuple(Published(**{**answer, "replaces": tuple(answer["replaces"])}) for answer in answers)


def test_many_channels_in_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapless_spark.export.task.PINNED_BYTES", 20_000)
    monkeypatch.setattr("gapless_spark.export.task.OPEN_FILES", 3)
    writer = Writer(work(tmp_path, Shape(by_channel=True)), 0)
    for first in range(1, 1000, 100):
        whole = batch(first, first + 99, channels=7)
        for key, piece in split_batch(whole, by_channel=True):
            writer.add(key, piece, whole.nbytes)
    files = published(writer.finish())
    assert len(files) == 7
    put_in_place(tmp_path, files)
    found = [id_ for file in files for id_ in ids_of(tmp_path / file.path)]
    assert sorted(found) == list(range(1, 1001))
    for file in files:
        (name,) = set(pq.ParquetFile(tmp_path / file.path).read(["channel"]).column(0).to_pylist())
        assert file.path.startswith(f"date=2026-11-20/{channel_folder(name)}/")
    put_in_place(tmp_path, files)  # once more: nothing is left to do
    # Staged no more, and not as it was written: what was extended, and the longer one is lost.
    (tmp_path / files[0].path).write_bytes(b"PAR1")
    with pytest.raises(OtherExport, match="has 4 bytes and was written with"):
        put_in_place(tmp_path, files)


def test_the_names_of_staged_files_are_on_disk_before_the_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    books = Ledger(tmp_path / "deep" / "out")
    books.open()
    books.sweep()
    synced: list[tuple[Path, bool]] = []
    monkeypatch.setattr(
        ledger, "sync_folder", lambda path: synced.append((path, any((books.home / "batches").iterdir())))
    )
    books.count(Entry(1, 0, 1, 1, "", Totals()))
    assert synced[0] == (books.root / books.staging, False)
    assert books.last() is not None
    books.close()


def test_a_catalog_that_cannot_be_used_is_told_as_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_text("no database" * 100)
    charter = Charter("e", "epoch", 0, "", Shape("iceberg"))
    with pytest.raises(OSError, match=r"file is not a database \(catalog\.db\)"):
        Iceberg(tmp_path, charter)


def test_files_have_the_size_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapless_spark.export.task.GROUP_ROWS", 100)
    writer = Writer(work(tmp_path, Shape(), file_bytes=10_000), 0)
    for first in range(1, 5000, 100):
        whole = batch(first, first + 99)
        writer.add(("2026-11-20", None), whole, whole.nbytes)
    files = published(writer.finish())
    assert len(files) > 2
    assert all(10_000 <= file.bytes < 30_000 for file in files[:-1])
    assert still_open({}, files, 10_000).get("date=2026-11-20", ()) == tuple(
        Open("2026-11-20", None, file.path, file.bytes, file.rows, file.groups)
        for file in files
        if file.bytes < 7_500
    )


def test_a_plain_file_is_copied_until_its_groups_are_many() -> None:
    few = Open("2026-11-20", None, "a", 1, 1, 3)
    many = Open("2026-11-20", None, "b", 1, 1, 99)
    assert Plain(Path("/x")).extensions((few, many)) == (
        Extension(copy="a", path="a"),
        Extension(merge=("b",), path="b"),
    )


def test_like_is_merged_with_like() -> None:
    small = tuple(Open("2026-11-20", None, f"s{n}", 1, 1, 1) for n in range(TIER))
    bigger = tuple(Open("2026-11-20", None, f"b{n}", 1, 1, 1, level=1) for n in range(TIER - 1))
    assert tier(small[:-1]).merge == ()
    assert tier(small).merge == tuple(file.path for file in small)
    assert tier(small).level == 1
    assert len(tier(small + bigger).merge) == 2 * TIER - 1
    assert tier(small + bigger).level == 2


def test_what_went_wrong_comes_through_in_words() -> None:
    full = from_os(OSError(errno.ENOSPC, "No space left on device"), "/data")
    assert isinstance(full, DiskFull)
    assert "make room" in str(full)
    for text in (
        "Generic error\n   \x1b[31m↳\x1b[0m No space left on device (os error 28)\n",
        "database or disk is full (catalog.db)",
    ):
        worded = from_os(OSError(text), "/data")
        assert isinstance(worded, DiskFull)
        assert str(worded).isprintable()
    assert isinstance(from_os(PermissionError(errno.EACCES, "Permission denied"), "/data"), FolderRefused)
    for error in (full, DataLoss("gone")):
        back = from_wire(to_wire(error))
        assert (type(back), str(back)) == (type(error), str(error))


def test_an_export_by_channel_of_the_layout_before_is_not_gone_on_with(tmp_path: Path) -> None:
    plain, by_channel = Shape(changes=False), Shape(by_channel=True, changes=False)
    assert (plain.layout, by_channel.layout) == (1, 2)
    assert (Shape().layout, Shape(by_channel=True).layout) == (3, 4)
    for shape in (plain, by_channel):
        path = tmp_path / "export.json"
        path.write_text(json.dumps(charter_json(Charter("e", "epoch", 0, "", shape))))
        assert read_charter(path).shape == shape
        path.write_text(json.dumps(json.loads(path.read_text()) | {"layout": 1}))
        if shape == by_channel:
            with pytest.raises(
                OtherExport, match="layout 1, and this version writes 2: export to a new folder"
            ):
                read_charter(path)
        else:
            assert read_charter(path).shape == plain
