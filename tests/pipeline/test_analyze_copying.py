"""The copy of the live log that `analyze` reads: whole, and gone with the block."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from gapless_spark.analyze.copying import FEW_BYTES, FEW_MESSAGES, NEEDED, Copy, Size
from gapless_spark.analyze.question import Fields, Question
from gapless_spark.errors import GaplessSparkError
from gapless_spark.planning import PART_MESSAGES

from tests.pipeline.analyzing import at
from tests.pipeline.conftest import Log


def copied(question: Question, tasks: int) -> tuple[int, list[dict[str, object]], int, Path]:
    """The rows it tells of, those it has, in how many files, and the folder once the block has ended."""
    with Copy(question, tasks) as copy:
        told = copy.size().messages
        found = ds.dataset(copy.folder, format="parquet").to_table()
        files = len(list(copy.folder.iterdir()))
        assert found.column_names in ([], list(NEEDED))
        rows = sorted(found.to_pylist(), key=lambda row: int(row["id"]))
    return told, rows, files, copy.folder


def test_it_holds_each_message_once_in_several_files(plain_log: Log) -> None:
    each = PART_MESSAGES
    for channel in ("a", "b", "c"):
        plain_log.owner.append(channel, [json.dumps({"n": n}) for n in range(each)])
    told, rows, files, folder = copied(Question(url=plain_log.url), 3)
    assert (told, files) == (3 * each, 3)
    assert [row["channel"] for row in rows] == ["a"] * each + ["b"] * each + ["c"] * each
    assert [json.loads(str(row["data"]))["n"] for row in rows] == [*range(each)] * 3
    assert not folder.exists()


def test_few_are_few_messages_and_few_bytes(plain_log: Log) -> None:
    """Of a million bytes each a process holds fewer."""
    plain_log.owner.append("a", [json.dumps("x" * 300_000)] * 70)
    plain_log.owner.append("b", ["1"])
    with (
        Copy(Question(url=plain_log.url), 2) as copy,
        Copy(Question(url=plain_log.url, channels="b"), 2) as b,
    ):
        assert (copy.size().messages, copy.size().bytes > FEW_BYTES, copy.size().few) == (71, True, False)
        assert (b.size().few, b.table().column("channel").to_pylist()) == (True, ["b"])
    assert not Size(FEW_MESSAGES, 0).few


def test_it_holds_only_what_is_asked_for(plain_log: Log) -> None:
    for channel in ("chat.a", "chat.b", "orders"):
        plain_log.owner.publish(channel, '{"sent_at": "2026-11-16T09:00:00Z"}')
    assert copied(Question(url=plain_log.url, channels="chat.>"), 2)[0] == 2
    assert copied(Question(url=plain_log.url, until=at(0)), 2)[0] == 0, "published later than that"
    # A time inside of data is known only after the message was read.
    inside = Fields(time="sent_at")
    assert copied(Question(url=plain_log.url, until=at(0), fields=inside), 2)[0] == 3
    assert copied(Question(url=plain_log.url, namespace="default", channels="none"), 2)[0] == 0


def test_what_reading_raises_comes_out_and_the_folder_goes(plain_log: Log) -> None:
    gone = plain_log.url.replace(plain_log.database.name, "gone")
    with Copy(Question(url=gone), 2) as copy, pytest.raises(GaplessSparkError, match="gone"):
        copy.size()
    assert not copy.folder.exists()


def test_who_stops_early_leaves_nothing_behind(plain_log: Log) -> None:
    plain_log.owner.publish("a")
    with pytest.raises(KeyboardInterrupt), Copy(Question(url=plain_log.url), 2) as copy:
        raise KeyboardInterrupt
    assert not copy.folder.exists()
