"""Writing with Spark: rows become messages, once, however often a task, a batch or a job is repeated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gapless_spark
import pyarrow as pa
import pytest
from gapless_spark import sink
from gapless_spark.sink_errors import PartitionTooLarge
from gapless_spark.sink_store import BatchKey, Store
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from tests.pipeline.conftest import Log, Loop
from tests.pipeline.sinks import COLUMNS, login

pytestmark = pytest.mark.spark

STORED = (
    "select c.name, m.seq, m.type, m.key, m.data::text, m.binary, m.headers::text, m.sender,"
    " extract(epoch from m.expires_at - m.created_at)::float8"
    " from gapless.messages m join gapless.channels c on c.id = m.channel_id order by c.name, m.seq"
)


@pytest.fixture
def publisher(log: Log, loop: Loop) -> str:
    """A login that may publish and nothing else."""
    return loop.run(login(log.database, "publisher"))


def write(frame: DataFrame, url: str, **options: str) -> None:
    frame.write.format("gapless").options(url=url, **options).mode("append").save()


def numbers(log: Log, count: int, partitions: int = 2) -> DataFrame:
    """Rows `{"n": 0}`, `{"n": 1}`, … for channels n0, n1 and n2."""
    frame = log.spark.range(0, count, 1, partitions)
    return frame.selectExpr("concat('n', id % 3) as channel", "to_json(named_struct('n', id)) as data")


def stored_numbers(log: Log) -> list[int]:
    """The numbers, sorted; seq must be dense in every channel."""
    gaps = log.owner.fetch(
        "select channel_id from gapless.messages group by channel_id"
        " having count(*) <> max(seq) or min(seq) <> 1 or count(distinct seq) <> count(*)"
    )
    assert gaps == []
    return sorted(
        json.loads(data)["n"] for (data,) in log.owner.fetch("select data::text from gapless.messages")
    )


def test_every_column_arrives(log: Log, publisher: str, loop: Loop) -> None:
    rows: list[tuple[Any, ...]] = [
        ("a.b", "said", "ü-1", '{"text": "Grüße 😀\\n"}', None, {"x": "y", "ü": '"'}, 60.0),
        ("c", None, None, None, b"\x00\xff", None, None),
        ("a.b", None, "2", "[1,\n2]", None, {}, None),
    ]
    schema = (
        "channel string, type string, key string, data string, binary binary,"
        " headers map<string,string>, ttl double"
    )
    write(log.spark.createDataFrame(rows, schema).coalesce(1), publisher)
    assert log.owner.fetch(STORED) == [
        ("a.b", 1, "said", "ü-1", '{"text": "Grüße 😀\\n"}', None, '{"x":"y","ü":"\\""}', None, 60.0),
        ("a.b", 2, "message", "2", "[1,\t2]", None, None, None, None),
        ("c", 1, "message", None, None, b"\x00\xff", None, None, None),
    ]
    reader = loop.run(login(log.database, "reader"))
    read = log.read(url=reader, binary="true").orderBy("channel", "seq").collect()
    assert [(row.channel, row.seq, row.data) for row in read] == [
        ("a.b", 1, '{"text": "Grüße 😀\\n"}'),
        ("a.b", 2, "[1,\t2]"),
        ("c", 1, None),
    ]
    assert bytes(read[2].binary) == b"\x00\xff"


def test_what_was_read_is_written_back_elsewhere(log: Log, publisher: str) -> None:
    log.owner.append("a", ["1", "2"], type="t", key="k", sender="s")
    write(log.read(channels="a"), publisher, channel="copy")
    copied = [row[:5] for row in log.owner.fetch(STORED) if row[0] == "copy"]
    assert copied == [("copy", 1, "t", "k", "1"), ("copy", 2, "t", "k", "2")]


CHANGES = (
    "data string, key string, target bigint, action string, through bigint, annotation string, mode string,"
    " remove boolean"
)


def changes_of(log: Log, last: int) -> DataFrame:
    """Rows that change messages up to this id, which are five and among others."""
    rows: list[tuple[Any, ...]] = [
        ("10", None, last - 4, "update", None, None, None, None),
        ("11", None, last - 4, "update", None, None, None, None),
        (None, None, last - 3, "annotate", None, "like", "distinct", None),
        (None, "k", last - 3, "annotate", None, "vote", "total", None),
        (None, "k", last - 3, "annotate", None, "vote", "total", None),
        (None, "k", last - 3, "annotate", None, "vote", "total", True),
        (None, None, last - 2, "delete", last - 1, None, None, None),
        ("12", None, last, "reply", None, None, None, None),
        ("13", None, None, None, None, None, None, None),
    ]
    return log.spark.createDataFrame(rows, CHANGES).coalesce(1)


def seen(rows: DataFrame) -> list[tuple[Any, ...]]:
    """What became of the originals among these rows."""
    told = (
        gapless_spark.latest(rows)
        .orderBy("id")
        .select("data", "deleted", F.to_json("annotations").alias("annotations"), "replies")
    )
    return [
        (row.data, row.deleted, row.annotations and json.loads(row.annotations), row.replies)
        for row in told.collect()
    ]


def test_changes_are_written_once_and_written_back_from_what_was_read(
    log: Log, publisher: str, loop: Loop
) -> None:
    log.owner.append("a", ["1", "2", "3", "4", "5"])
    last: int = log.owner.value("select max(id) from gapless.messages")
    for _ in range(2):
        write(changes_of(log, last), publisher, channel="a", writeId="job")
    reader = loop.run(login(log.database, "reader"))
    rows = log.read(url=reader, channels="a", changes="true")
    after = [
        ("11", False, None, 0),
        ("2", False, {"like": {"distinct": 1}, "vote": {"total": 1, "keys": {"k": 1}}}, 0),
        (None, True, None, 0),
        (None, True, None, 0),
        ("5", False, None, 1),
        ("12", False, None, 0),
        ("13", False, None, 0),
    ]
    assert seen(rows) == after

    # Five originals in another channel: what changes them names their ids.
    log.owner.append("b", ["1", "2", "3", "4", "5"])
    shift = log.owner.value("select max(id) from gapless.messages") - last
    moved = rows.where(F.col("id") > last).withColumns(
        {"target": F.col("target") + shift, "through": F.col("through") + shift}
    )
    write(moved.coalesce(1).sortWithinPartitions("id"), publisher, channel="b")
    assert seen(log.read(url=reader, channels="b", changes="true")) == after


@pytest.mark.drill
def test_a_query_whose_change_is_refused_goes_on_without_it(log: Log, publisher: str, tmp_path: Path) -> None:
    log.owner.append("a", ["1"])
    target: int = log.owner.value("select max(id) from gapless.messages")
    source = tmp_path / "source"
    source.mkdir()
    (source / "0.txt").write_text(f"{target}\n{target + 1000}\n{target}\n")

    def run(**options: str) -> None:
        lines = log.spark.readStream.text(str(source)).coalesce(1)
        rows = lines.selectExpr(
            "'a' as channel", "bigint(value) as target", "'reply' as action", "value as data"
        )
        writing = rows.writeStream.format("gapless").options(url=publisher, **options)
        writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writing.trigger(availableNow=True).start().awaitTermination()

    for _ in range(2):
        with pytest.raises(
            PySparkException, match=rf"ChangeRefused.*reply of message {target + 1000} in channel a: no"
        ):
            run()
    assert log.owner.value("select count(*) from gapless.messages") == 1
    with pytest.raises(PySparkException, match="refusedChanges: 'maybe' is neither fail nor skip"):
        run(refusedChanges="maybe")
    run(refusedChanges="skip")
    run()
    assert log.owner.value("select count(*) from gapless.changes") == 2
    assert log.owner.value("select sum(refused) from gapless.spark_batches") == 1


@pytest.mark.drill
def test_a_job_that_runs_again_publishes_once(log: Log, publisher: str) -> None:
    write(numbers(log, 1_000), publisher, writeId="job 1")
    write(numbers(log, 1_000), publisher, writeId="job 1")
    write(numbers(log, 1_000, partitions=5), publisher, writeId="job 1")
    assert stored_numbers(log) == list(range(1_000))
    with pytest.raises(PySparkException, match=r"write 'job 1'.* had 1000 rows .* has 999 now"):
        write(numbers(log, 999), publisher, writeId="job 1")
    write(numbers(log, 10), publisher, writeId="job 2")
    write(numbers(log, 10), publisher)
    assert stored_numbers(log) == sorted([*range(1_000), *range(10), *range(10)])
    assert log.owner.value("select count(*) from gapless.spark_chunks") == 0


def test_a_bad_row_is_named_and_nothing_is_stored(log: Log, publisher: str) -> None:
    frame = numbers(log, 20_000, partitions=1).selectExpr(
        "channel", "if(data = '{\"n\":12345}', '{\"n\":', data) as data"
    )
    with pytest.raises(
        PySparkException,
        match=r"row 12345 of partition 0 \(counted from 0; channel .*\): data: is not JSON",
    ):
        write(frame, publisher)
    assert stored_numbers(log) == []


@pytest.mark.parametrize(
    ("columns", "mode", "options", "said"),
    [
        (["named_struct('n', id) as data"], "append", {"channel": "a"}, "to_json"),
        (["'1' as data"], "append", {}, "channel: is missing"),
        (["'1' as data"], "overwrite", {"channel": "a"}, "messages are immutable"),
        (["'1' as data"], "append", {"channel": "a", "url": ""}, "url: is missing"),
        (["'1' as data"], "append", {"channel": "a", "verifyReruns": "maybe"}, "verifyReruns"),
    ],
)
def test_what_cannot_be_written_is_refused_before_it_begins(
    log: Log, publisher: str, columns: list[str], mode: str, options: dict[str, str], said: str
) -> None:
    frame = log.spark.range(3).selectExpr(*columns)
    with pytest.raises(PySparkException) as caught:
        frame.write.format("gapless").options(**{"url": publisher} | options).mode(mode).save()
    assert said in str(caught.value)


class Lines:
    """A stream of text files, a file a batch, into the sink."""

    def __init__(self, log: Log, url: str, folder: Path) -> None:
        self._log = log
        self._url = url
        self._source = folder / "source"
        self._source.mkdir()
        self.checkpoint = folder / "checkpoint"
        self._files = 0

    def add(self, first: int, after: int) -> None:
        text = "".join(f"{n}\n" for n in range(first, after))
        (self._source / f"{self._files:03}.txt").write_text(text)
        self._files += 1

    def run(self, partitions: int = 2, **options: str) -> None:
        """Everything there is, as a query that ends by itself."""
        self._query(partitions, options).awaitTermination()

    def _query(self, partitions: int, options: dict[str, str]) -> StreamingQuery:
        lines = self._log.spark.readStream.option("maxFilesPerTrigger", "1").text(str(self._source))
        rows = lines.repartition(partitions).selectExpr(
            "concat('n', value % 3) as channel", "concat('{\"n\":', value, '}') as data"
        )
        writing = rows.writeStream.format("gapless").options(url=self._url, **options)
        return writing.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()

    def forget(self, batch: int) -> None:
        """As if the driver had been killed before it noted that the batch is done."""
        commits = self.checkpoint / "commits"
        (commits / str(batch)).unlink()
        (commits / f".{batch}.crc").unlink()


@pytest.fixture
def lines(log: Log, publisher: str, tmp_path: Path) -> Iterator[Lines]:
    yield Lines(log, publisher, tmp_path)
    for query in log.spark.streams.active:
        query.stop()


def test_a_query_that_starts_again_publishes_once(log: Log, lines: Lines) -> None:
    lines.add(0, 500)
    lines.add(500, 1_000)
    lines.run()
    lines.forget(1)
    lines.run(partitions=3)
    assert stored_numbers(log) == list(range(1_000))
    lines.add(1_000, 1_500)
    lines.run()
    assert stored_numbers(log) == list(range(1_500))
    noted = log.owner.fetch("select batch, row_count from gapless.spark_batches order by batch")
    assert noted[:3] == [(0, 500), (1, 500), (2, 500)]
    assert log.owner.value("select count(*) from gapless.spark_attempts") == 0


def test_a_batch_that_changed_is_refused(log: Log, lines: Lines, tmp_path: Path) -> None:
    lines.add(0, 500)
    lines.run()
    lines.forget(0)
    (tmp_path / "source" / "000.txt").write_text("7\n")
    with pytest.raises(PySparkException, match="had 500 rows when it was first written, and has 1 now"):
        lines.run()
    lines.run(verifyReruns="false")
    assert stored_numbers(log) == list(range(500))


def test_a_write_that_fails_half_way_is_published_to_its_end(log: Log, publisher: str) -> None:
    """The driver died after the batch was decided: whoever writes it again goes on with it."""
    frame = numbers(log, 30)
    key = BatchKey("default", "job", -1)
    target = sink.Target(publisher, "default", COLUMNS, True)
    data = [row.data for row in frame.collect()]
    half = [pa.record_batch({"channel": ["n0"] * 15, "data": part}) for part in (data[:15], data[15:])]
    parts = [sink.stage(target, key, "run", n, iter([batch])) for n, batch in enumerate(half)]
    with Store(publisher) as store:
        store.bind(key, [str(part.attempt) for part in parts], [15, 15], 30, True)
    assert stored_numbers(log) == []
    write(frame, publisher, writeId="job")
    assert stored_numbers(log) == list(range(30))


def test_a_repeated_task_and_a_failed_batch_leave_nothing(log: Log, publisher: str) -> None:
    key = BatchKey("default", "job", -1)
    target = sink.Target(publisher, "default", COLUMNS, True)

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"channel": ["n0"] * 3, "data": ['{"n":0}', '{"n":1}', '{"n":2}']})

    lost, counted, other = (sink.stage(target, key, "run", 0, rows()) for _ in range(3))
    sink.discard(target, [other, None])
    assert log.owner.value("select count(*) from gapless.spark_attempts") == 2
    sink.publish(target, [None, counted])
    sink.publish(target, [lost])
    assert stored_numbers(log) == [0, 1, 2]
    assert log.owner.value("select count(*) from gapless.spark_attempts") == 0


def test_a_partition_above_the_limit_is_refused(
    log: Log, publisher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "TRANSACTION_ROWS", 5)
    target = sink.Target(publisher, "default", COLUMNS, True)
    rows = pa.record_batch({"channel": ["a"] * 6, "data": ["1"] * 6})
    with pytest.raises(PartitionTooLarge, match=r"more than 5 rows .* df\.repartition\(n\)"):
        sink.stage(target, BatchKey("default", "job", -1), "run", 0, iter([rows]))
    assert stored_numbers(log) == []


def test_a_task_that_fails_removes_what_it_staged(log: Log, publisher: str) -> None:
    target = sink.Target(publisher, "default", COLUMNS, True)

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"channel": ["a"], "data": ["1"]})
        assert log.owner.value("select count(*) from gapless.spark_chunks") == 1
        raise RuntimeError("the source is gone")

    with pytest.raises(RuntimeError):
        sink.stage(target, BatchKey("default", "job", -1), "run", 0, rows())
    assert log.owner.value("select count(*) from gapless.spark_chunks") == 0
