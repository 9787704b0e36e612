"""The streaming reader as Spark calls it, without Spark: offsets, late commits, retention."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from gapless_spark.columns import spark_schema
from gapless_spark.errors import BadOption, DatabaseUnreachable, DataLoss, OtherLog
from gapless_spark.options import read_options
from gapless_spark.ranges import Range
from gapless_spark.reading import read_range
from gapless_spark.selection import Selection
from gapless_spark.snapshots import snapshot
from gapless_spark.stream import GaplessStreamReader
from gapless_spark.watermark import settled
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from app.embedded import EmbeddedPostgres
from db.migrate import migrate
from tests.patience import PATIENCE_S
from tests.pipeline.conftest import Log, Loop, Session


@dataclass
class Stream:
    """A query's bookkeeping: where it stands, and what it has read."""

    reader: GaplessStreamReader
    at: dict[str, Any]

    def step(self, limit: ReadLimit | None = None) -> list[int]:
        """One micro-batch: the ids it reads, sorted. Empty where there is nothing new."""
        end = self.reader.latestOffset(self.at, limit or self.reader.getDefaultReadLimit())
        ids = self.between(self.at, end)
        self.at = end
        return ids

    def between(self, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
        return self.read(self.reader.partitions(start, end))

    def read(self, parts: Sequence[InputPartition]) -> list[int]:
        return sorted(
            id_ for part in parts for batch in self.reader.read(part) for id_ in batch[0].to_pylist()
        )


def follow(log: Log, at: dict[str, Any] | None = None, **options: str) -> Stream:
    """A reader that starts, or goes on at a checkpoint's offset."""
    reader = GaplessStreamReader(read_options({"url": log.url} | options, streaming=True), spark_schema(), 2)
    return Stream(reader, reader.initialOffset() if at is None else at)


def test_it_begins_where_it_was_told(plain_log: Log) -> None:
    ids = plain_log.owner.append("a", ["1", "2", "3"])
    assert follow(plain_log, startingOffsets="earliest").step() == ids
    assert follow(plain_log, startingOffsets=str(ids[0])).step() == ids[1:]
    assert follow(plain_log, startingTimestamp="0").step() == ids
    assert follow(plain_log, startingTimestamp="2100-01-01T00:00:00Z").step() == []
    latest = follow(plain_log)
    assert latest.step() == []
    more = plain_log.owner.append("a", ["4"])
    assert latest.step() == more
    with pytest.raises(BadOption, match=r"^startingOffsets: 99 lies beyond the log, whose newest id is 4"):
        follow(plain_log, startingOffsets="99")


def test_a_late_commit_is_in_a_later_batch(plain_log: Log) -> None:
    stream = follow(plain_log, startingOffsets="earliest")
    slow = plain_log.session()
    slow.execute("begin")
    (early,) = slow.append("slow", ["1"])
    (late,) = plain_log.owner.append("quick", ["2"])
    batches: list[list[int]] = []
    waiting = threading.Thread(target=lambda: batches.append(stream.step()))
    waiting.start()
    # Nobody may pass the open id: the batch waits until it is decided.
    slow.execute("commit")
    waiting.join(PATIENCE_S)
    assert batches == [[early, late]]


def test_an_sql_publish_that_commits_late_comes_late(plain_log: Log) -> None:
    stream = follow(plain_log, startingOffsets="earliest")
    slow = plain_log.session()
    slow.execute("begin")
    slow.publish("slow")
    first = plain_log.owner.append("quick", ["1"])
    assert stream.step() == first
    slow.execute("commit")
    later = plain_log.owner.append("quick", ["2"])
    assert stream.step() == [first[0] + 1, *later]


def test_ids_that_were_rolled_back_are_passed(plain_log: Log) -> None:
    stream = follow(plain_log, startingOffsets="earliest")
    plain_log.owner.execute("begin")
    plain_log.owner.append("a", ["1", "2"])
    plain_log.owner.execute("rollback")
    assert stream.step() == []
    (third,) = plain_log.owner.append("a", ["3"])
    assert third == 3
    assert stream.step() == [third]


def test_a_limit_counts_messages_that_are_selected(plain_log: Log) -> None:
    ours = []
    for _ in range(5):
        ours += plain_log.owner.append("ours", ["1", "2"])
        plain_log.owner.append("theirs", ["1"] * 3)
    stream = follow(plain_log, startingOffsets="earliest", channels="ours", maxOffsetsPerTrigger="4")
    assert [stream.step(), stream.step(), stream.step(), stream.step()] == [ours[:4], ours[4:8], ours[8:], []]
    again = follow(plain_log, startingOffsets="earliest", channels="ours", maxOffsetsPerTrigger="4")
    assert again.step(ReadAllAvailable()) == ours
    assert isinstance(again.reader.getDefaultReadLimit(), ReadMaxRows)


def test_channels_that_are_made_later_are_followed(plain_log: Log) -> None:
    stream = follow(plain_log, startingOffsets="earliest", channels="orders.>, audit")
    plain_log.owner.append("other", ["1"])
    assert stream.step() == []
    ids = plain_log.owner.append("orders.eu.north", ["1"]) + plain_log.owner.append("audit", ["1"])
    plain_log.owner.append("orders", ["1"])
    assert stream.step() == ids


def test_a_quiet_channel_in_a_busy_log_makes_no_empty_batches(plain_log: Log) -> None:
    stream = follow(plain_log, channels="quiet")
    at = stream.at
    for _ in range(3):
        plain_log.owner.append("busy", ["1"])
        assert stream.step() == []
    assert stream.at == at
    assert stream.reader.reportLatestOffset() == at
    ids = plain_log.owner.append("quiet", ["1"])
    assert stream.step() == ids


def test_the_lag_can_be_told(plain_log: Log) -> None:
    stream = follow(plain_log, startingOffsets="earliest", maxOffsetsPerTrigger="3")
    assert stream.reader.reportLatestOffset() is None
    plain_log.owner.append("a", ["1"] * 10)
    stream.step()
    latest = stream.reader.reportLatestOffset()
    assert latest is not None
    assert (stream.at["id"], latest["id"]) == (3, 10)


def test_available_now_ends_where_it_began(plain_log: Log) -> None:
    stream = follow(plain_log, startingOffsets="earliest", maxOffsetsPerTrigger="2")
    ids = plain_log.owner.append("a", ["1", "2", "3"])
    stream.reader.prepareForTriggerAvailableNow()
    plain_log.owner.append("a", ["4"])
    assert stream.step() == ids[:2]
    assert stream.step() == ids[2:]
    end = stream.at
    assert stream.step() == []
    assert stream.at == end


def test_a_batch_can_be_read_again(plain_log: Log) -> None:
    stream = follow(plain_log, startingOffsets="earliest")
    start = stream.at
    ids = stream.step() or plain_log.owner.append("a", ["1"] * 7)
    stream.step()
    plain_log.owner.append("a", ["1"])
    assert follow(plain_log, at=start).between(start, stream.at) == ids


def test_an_offset_is_small_and_belongs_to_one_log(plain_log: Log) -> None:
    plain_log.owner.append("a", ["1"])
    stream = follow(plain_log)
    epoch = plain_log.owner.value("select epoch::text from gapless.log")
    assert stream.at == {"version": 1, "epoch": epoch, "id": 1}
    elsewhere = stream.at | {"epoch": "4f2c0e5c-0000-4000-8000-000000000000"}
    calls: list[Callable[[], object]] = [
        lambda: follow(plain_log, at=elsewhere).step(),
        lambda: follow(plain_log).between(elsewhere, elsewhere | {"id": 9}),
        lambda: follow(plain_log, at={"version": 7, "id": 1}).step(),
        lambda: follow(plain_log, at=stream.at | {"id": 50}).step(),
    ]
    for call in calls:
        with pytest.raises(OtherLog, match="Use a new checkpoint folder"):
            call()


def keep(log: Log, channel: str, newest: int) -> None:
    """Retention: only the newest messages stay."""
    log.owner.execute("update gapless.channels set max_messages = $2 where name = $1", channel, newest)
    log.owner.execute("select gapless.trim_channels(100)")


def test_what_retention_took_is_an_error(plain_log: Log) -> None:
    stream = follow(plain_log, startingOffsets="earliest", channels="a", maxOffsetsPerTrigger="2")
    ids = plain_log.owner.append("a", ["1"] * 10)
    assert stream.step() == ids[:2]
    keep(plain_log, "a", 8)  # only what was read
    assert stream.step() == ids[2:4]
    keep(plain_log, "a", 3)
    with pytest.raises(
        DataLoss, match=r"after id 4 .*channel a has lost everything up to id 7 .*failOnDataLoss to false"
    ):
        stream.step()
    careless = follow(plain_log, at=stream.at, channels="a", failOnDataLoss="false")
    assert careless.step() == ids[7:]


def test_loss_is_noticed_before_a_planned_batch_is_read(plain_log: Log) -> None:
    stream = follow(plain_log, startingOffsets="earliest")
    plain_log.owner.append("a", ["1"] * 10)
    end = stream.reader.latestOffset(stream.at, ReadAllAvailable())
    parts = stream.reader.partitions(stream.at, end)
    keep(plain_log, "a", 3)
    with pytest.raises(DataLoss, match="channel a has lost everything up to id 7"):
        list(stream.reader.read(parts[0]))
    with pytest.raises(DataLoss):
        stream.reader.partitions(stream.at, end)


def test_earliest_is_the_oldest_that_is_kept(plain_log: Log) -> None:
    """Loss is told from what was gone already, also behind the mark of another channel."""
    old = plain_log.owner.append("kept", ["1"] * 4)
    plain_log.owner.append("trimmed", ["1"] * 10)
    keep(plain_log, "trimmed", 1)
    stream = follow(plain_log, startingOffsets="earliest", maxOffsetsPerTrigger="2")
    assert stream.at["removed"]
    assert stream.step() == old[:2]
    keep(plain_log, "kept", 1)
    with pytest.raises(DataLoss):
        stream.step()
    fresh = follow(plain_log, startingOffsets="earliest", maxOffsetsPerTrigger="2")
    assert fresh.step() == [old[3], 14]
    assert "removed" not in fresh.at


def test_an_id_that_retention_passed_is_an_error(plain_log: Log) -> None:
    plain_log.owner.append("a", ["1"] * 10)
    keep(plain_log, "a", 2)
    with pytest.raises(DataLoss, match="after id 3"):
        follow(plain_log, startingOffsets="3").step()
    assert follow(plain_log, startingOffsets="3", failOnDataLoss="false").step() == [9, 10]
    assert follow(plain_log, startingOffsets="8").step() == [9, 10]


def test_a_dropped_segment_is_loss_too(plain_log: Log) -> None:
    ids = plain_log.owner.append("a", ["1"] * 4)
    stream = follow(plain_log, startingOffsets="earliest", maxOffsetsPerTrigger="2")
    assert stream.step() == ids[:2]
    assert plain_log.owner.value("select gapless.roll_segment(0)")
    (newest,) = plain_log.owner.append("a", ["1"])
    with snapshot(plain_log.url) as view:
        keep(plain_log, "a", 1)
        # What somebody reads is not dropped under them.
        with pytest.raises(asyncpg.LockNotAvailableError):
            plain_log.owner.value("select gapless.drop_segment($1)", newest)
        batches = read_range(
            view.url, Selection(), ["id"], Range(0, view.settled), snapshot=view.name, ordered=True
        )
        assert [id_ for batch in batches for id_ in batch[0].to_pylist()] == [*ids, newest]
    assert plain_log.owner.value("select gapless.drop_segment($1)", newest) == 1
    with pytest.raises(DataLoss, match="after id 2"):
        stream.step()
    careless = follow(plain_log, at=stream.at, failOnDataLoss="false")
    assert careless.step() == [newest]


def test_four_writers_that_commit_out_of_order(plain_log: Log) -> None:
    """Ids are taken early and committed late, a tenth is rolled back: nothing is passed over, nothing comes
    twice, and every batch is in order of the last."""
    sessions = [plain_log.session() for _ in range(4)]

    def write(session: Session, chance: random.Random) -> None:
        for _ in range(40):
            session.execute("begin")
            session.append(f"c.{chance.randrange(6)}", ["1"] * chance.randint(1, 5))
            for _ in range(chance.randrange(12)):
                session.fetch("select 1")
            session.execute("rollback" if chance.random() < 0.1 else "commit")

    writers = [
        threading.Thread(target=write, args=(session, random.Random(seed)))
        for seed, session in enumerate(sessions)
    ]
    stream = follow(plain_log, startingOffsets="earliest", channels="c.*", maxOffsetsPerTrigger="25")
    for writer in writers:
        writer.start()
    read: list[int] = []
    while any(writer.is_alive() for writer in writers):
        read += stream.step()
    while batch := stream.step():
        read += batch
    assert read == [id_ for (id_,) in plain_log.owner.fetch("select id from gapless.messages order by id")]


def test_an_id_held_for_good_makes_a_stream_wait(plain_log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = follow(plain_log, startingOffsets="earliest")
    monkeypatch.setattr("gapless_spark.stream.settled", partial(settled, patience_s=0.05))
    slow = plain_log.session()
    slow.execute("begin")
    ids = slow.append("slow", ["1"])
    assert stream.step() == []
    slow.execute("commit")
    monkeypatch.undo()
    assert stream.step() == ids


def test_a_deleted_channel_is_no_loss(plain_log: Log) -> None:
    stream = follow(plain_log, startingOffsets="earliest")
    plain_log.owner.append("a", ["1"] * 3)
    kept = plain_log.owner.append("b", ["1"])
    plain_log.owner.execute("select gapless.delete_channel(1, 'a')")
    assert stream.step() == kept
    again = plain_log.owner.append("a", ["1"])
    assert stream.step() == again


def test_namespaces_do_not_leak(plain_log: Log) -> None:
    plain_log.owner.execute("insert into gapless.namespaces (name) values ('team')")
    ours = plain_log.owner.append("a", ["1"])
    theirs = plain_log.owner.append("a", ["2"], namespace="team")
    assert follow(plain_log, startingOffsets="earliest").step() == ours
    assert follow(plain_log, startingOffsets="earliest", namespace="team").step() == theirs
    assert follow(plain_log, startingOffsets="earliest", namespace="nobody").step() == []


def test_a_stream_waits_for_a_database_that_restarts(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EmbeddedPostgres(tmp_path)
    server.start()
    try:
        loop.run(migrate(server.owner_url, admin_url=server.admin_url))
        publish = "select gapless.publish('a', '1'::jsonb)"
        first = Session(loop, server.owner_url)
        first.execute(publish)
        reader = GaplessStreamReader(
            read_options({"url": server.owner_url, "startingOffsets": "earliest"}, streaming=True),
            spark_schema(),
            2,
        )
        stream = Stream(reader, reader.initialOffset())
        assert stream.step() == [1]
        first.execute(publish)
        end = reader.latestOffset(stream.at, reader.getDefaultReadLimit())
        parts = reader.partitions(stream.at, end)
        first.close()
        server.stop()
        # One that begins is told at once: its address may be wrong.
        with pytest.raises(DatabaseUnreachable):
            reader.initialOffset()
        waits = threading.Event()
        monkeypatch.setattr(logging.getLogger("gapless_spark"), "warning", lambda *_: waits.set())
        found: list[list[int]] = []
        calls = [
            lambda: found.append(stream.read(parts)),
            lambda: found.append([reader.latestOffset(stream.at, reader.getDefaultReadLimit())["id"]]),
        ]
        threads = [threading.Thread(target=call) for call in calls]
        for thread in threads:
            thread.start()
        assert waits.wait(PATIENCE_S)
        assert found == []
        server.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert sorted(found) == [[2], [2]]
    finally:
        server.stop()


def test_a_task_goes_on_where_its_connection_was_lost(plain_log: Log) -> None:
    ids: list[int] = []
    for _ in range(30):
        ids += plain_log.owner.append("a", ['"' + "x" * 2000 + '"'] * 1000)
    stream = follow(plain_log, startingOffsets="earliest")
    end = stream.reader.latestOffset(stream.at, stream.reader.getDefaultReadLimit())
    found: list[int] = []
    for part in stream.reader.partitions(stream.at, end):
        for number, batch in enumerate(stream.reader.read(part)):
            found += batch[0].to_pylist()
            if number in (0, 2):
                plain_log.owner.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where datname = current_database() and application_name = 'gapless-spark'"
                )
    assert found == ids


def test_an_offset_of_a_lost_past_is_told(plain_log: Log) -> None:
    """Another server became the primary, and lacks what this reader has read."""
    plain_log.owner.append("a", ["1"] * 3)
    stream = follow(plain_log, startingOffsets="earliest")
    before = stream.at
    assert stream.step() == [1, 2, 3]
    plain_log.owner.execute("delete from gapless.messages where id = 3")
    plain_log.owner.execute("select gapless.fence((select epoch from gapless.log))")
    new = plain_log.owner.append("a", ["2"])
    assert new[0] > 1_000_000_000_000_000, "no id of the lost past is given again"
    with pytest.raises(DataLoss, match="ids from 3 to 3 may have been read"):
        follow(plain_log, at=stream.at).step()
    assert follow(plain_log, at=stream.at, failOnDataLoss="false").step() == new
    earlier = before | {"id": 2}
    assert follow(plain_log, at=earlier).step() == new, "what is older than the fence goes on"
