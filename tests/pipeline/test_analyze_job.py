"""The whole job: folders and the live log in, findings, tables and a page out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gapless_spark.analyze import page
from gapless_spark.analyze.copying import Copy
from gapless_spark.analyze.events import to_events
from gapless_spark.analyze.findings import Findings
from gapless_spark.analyze.job import AT_ONCE, COMPILED, analyze, compile_for, raise_first, side_by_side
from gapless_spark.analyze.question import Fields, Question
from gapless_spark.analyze.reading import read_messages
from gapless_spark.analyze.tables import rows
from gapless_spark.columns import arrow_schema
from gapless_spark.errors import BadOption
from pyspark.sql import SparkSession

from tests.pipeline.analyzing import START, at, message, messages_of
from tests.pipeline.conftest import Log

pytestmark = [pytest.mark.spark, pytest.mark.drill]

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOSTILE = "</script><script>alert(1)</script>"
SAID = [
    message(1, "chat.a", {"text": "one two", "user": "ann"}, seconds=0),
    message(2, "chat.a", {"text": "three", "user": "bob"}, seconds=30),
    message(3, "chat.b", {"text": "", "user": HOSTILE}, seconds=60),
    message(4, "7", {"text": None, "user": "ann"}, seconds=90000),
]


def write_export(folder: Path, messages: list[tuple[Any, ...]], by_channel: bool = False) -> str:
    """A folder shaped as the export writes it."""
    (folder / "_gapless").mkdir(parents=True)
    for row in messages:
        day = row[-1].date().isoformat()
        home = folder / f"date={day}" / (f"channel={row[1]}" if by_channel else "")
        home.mkdir(parents=True, exist_ok=True)
        columns = {name: [value] for name, value in zip(arrow_schema().names, row, strict=True)}
        columns["headers"] = [[]]
        table = pa.table(columns, schema=arrow_schema())
        pq.write_table(
            table.drop_columns(["channel"]) if by_channel else table, home / f"part-{row[0]}.parquet"
        )
    (folder / "_gapless" / "half.parquet").write_bytes(b"still being written")
    return str(folder)


def test_no_more_is_compiled_than_so_many_messages_are_worth(spark: SparkSession) -> None:
    before = {key: spark.conf.get(key) for key, *_ in COMPILED}
    try:
        for messages, wanted in ((10, len(COMPILED)), (100_000, 1), (2_000_000, 0)):
            for key in before:
                spark.conf.unset(key)
            compile_for(spark, messages)
            assert sum(spark.conf.get(key) == value != before[key] for key, value, _ in COMPILED) == wanted
    finally:
        for key in before:
            spark.conf.unset(key)


@pytest.mark.parametrize("by_channel", [False, True])
def test_a_folder_of_the_export(spark: SparkSession, tmp_path: Path, by_channel: bool) -> None:
    source = write_export(tmp_path / "export", SAID, by_channel)
    question = Question(source=source, fields=Fields(sender="user"))
    tables = tmp_path / "tables"
    found = analyze(spark, question, NOW, str(tables))
    assert found.volume is not None
    assert (found.read.totals["messages"], found.read.totals["without_text"]) == (4, 1)
    assert [row["channel"] for row in found.volume.channels] == ["chat.a", "7", "chat.b"]
    assert found.senders is not None
    assert {row["sender"]: row["messages"] for row in found.senders.top} == {"ann": 2, "bob": 1, HOSTILE: 1}
    assert found.delivery is None
    assert "no database" in (found.delivery_absent or "")
    assert {path.name for path in tables.iterdir()} == {
        "volume_by_hour",
        "channels",
        "busiest_hours",
        "active_senders_by_hour",
        "active_senders_by_day",
        "senders",
        "sessions",
        "reply_latency",
        "words",
        "rates",
    }
    assert pq.read_table(tables / "volume_by_hour").num_rows == 3
    html = page.render(found, "A & B <i>")
    assert "A &amp; B &lt;i&gt;" in html
    assert HOSTILE not in html


def test_parts_are_chosen_by_channel_and_time(spark: SparkSession, tmp_path: Path) -> None:
    source = write_export(tmp_path / "export", SAID)
    chosen = Question(
        source=source, channels="chat.>", since=at(30), until=at(86400), fields=Fields(sender="user")
    )
    found = analyze(spark, chosen, NOW)
    assert found.read.totals["messages"] == 2
    assert found.read.totals["first_at"] == at(30)


def test_days_begin_where_the_zone_says(spark: SparkSession, tmp_path: Path) -> None:
    source = write_export(tmp_path / "export", SAID)
    try:
        found = analyze(spark, Question(source=source, timezone="Asia/Kolkata"), NOW)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert found.volume is not None
    # 09:00 and 10:00 UTC are half past in that zone.
    assert {(row["weekday"], row["hour"]) for row in found.volume.week} == {(0, 14), (1, 15)}
    assert {f"{row['period']:%d %H:%M}" for row in found.volume.periods} == {"16 14:00", "17 15:00"}
    assert f"{found.read.totals['first_at']:%H:%M}" == "14:30"


def test_an_export_without_messages_and_an_empty_one(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "empty" / "_gapless").mkdir(parents=True)
    source = write_export(tmp_path / "export", SAID)
    for question in (Question(source=str(tmp_path / "empty")), Question(source=source, channels="other")):
        found = analyze(spark, question, NOW)
        html = page.render(found, "Nothing")
        assert "There are no messages" in html
        assert 'class="chart"' not in html


def test_folders_that_are_no_export(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other" / "x.parquet")
    with pytest.raises(BadOption, match="no column channel, created_at"):
        analyze(spark, Question(source=str(tmp_path / "other")), NOW)
    with pytest.raises(BadOption, match="no folder"):
        analyze(spark, Question(source=str(tmp_path / "absent")), NOW)
    with pytest.raises(BadOption, match="is in the export"):
        analyze(spark, Question(source=str(tmp_path)), NOW, str(tmp_path / "tables"))


def test_delta_and_iceberg_tables_are_read_by_their_logs(spark: SparkSession, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    columns = list(zip(*SAID, strict=True))
    columns[6] = tuple([] for _ in SAID)
    table = pa.table(dict(zip(arrow_schema().names, columns, strict=True)), schema=arrow_schema())
    delta = tmp_path / "delta 100%"
    deltalake.write_deltalake(str(delta), table)
    # A file that no version of the table names.
    pq.write_table(table, delta / "stray.parquet")
    assert read_messages(spark, Question(source=str(delta))).count() == 4

    catalogs = pytest.importorskip("pyiceberg.catalog.sql")
    home = tmp_path / "iceberg"
    home.mkdir()
    catalog = catalogs.SqlCatalog("test", uri=f"sqlite:///{home}/catalog.db", warehouse=f"file://{home}")
    catalog.create_namespace("gapless")
    catalog.create_table("gapless.messages", schema=table.schema).append(table)
    catalog.close()
    assert read_messages(spark, Question(source=str(home))).count() == 4


def test_members_of_data_stand_in_for_sender_and_time(spark: SparkSession) -> None:
    said = [
        message(
            1,
            "c",
            {"from": {"name": "ann"}, "sent": "2014-11-30T23:35:14.775Z", "text": "a b\u00a0c"},
            "key-1",
        ),
        message(2, "c", {"from": {"name": ""}, "sent": 1417390514, "text": 5}),
        message(3, "c", {"from": 7, "sent": 1417390514775, "text": "  "}),
        message(4, "c", None),
        message(5, "c", {"sent": "yesterday"}),
    ]
    fields = Fields(text="text", sender="from.name", time="sent")
    found = {r["id"]: r for r in rows(to_events(messages_of(spark, said), fields))}
    moment = datetime(2014, 11, 30, 23, 35, 14, 775000, tzinfo=UTC)
    assert [found[n]["sender"] for n in range(1, 6)] == ["ann", None, None, None, None]
    assert [found[n]["words"] for n in range(1, 6)] == [3, 1, 0, None, None]
    assert [found[n]["at"] for n in range(1, 6)] == [
        moment,
        moment.replace(microsecond=0),
        moment,
        None,
        None,
    ]
    assert found[4]["bytes"] == 0
    own = rows(to_events(messages_of(spark, said[:1]), Fields()))
    assert (own[0]["sender"], own[0]["at"]) == ("key-1", START)


def test_the_live_log_and_its_queues(log: Log, tmp_path: Path) -> None:
    log.owner.append("chat.a", ['{"text": "hello there"}'] * 3, sender="ann")
    log.owner.append("chat.b", ['{"text": "x"}'], sender="bob")
    found = analyze(log.spark, Question(url=log.url, channels="chat.*"), NOW, str(tmp_path / "tables"))
    assert (found.read.totals["messages"], found.read.totals["senders"]) == (4, 2)
    assert found.delivery is not None
    assert found.delivery.subscriptions == []
    html = page.render(found, "Live")
    assert "no durable subscription" in html


def in_order(found: Findings) -> Findings:
    """Rows that are drawn by their places come in any order."""
    assert found.volume is not None
    parts = {
        name: sorted(getattr(found.volume, name), key=str) for name in ("periods", "hours_of_day", "week")
    }
    return replace(found, volume=replace(found.volume, **parts))


def test_few_messages_make_the_findings_and_the_tables_that_many_would(log: Log, tmp_path: Path) -> None:
    """Few are held by this process, which writes the tables too; else Spark keeps and writes them."""
    for n, (channel, user) in enumerate([("chat.a", "ann"), ("chat.a", "bob"), ("b", "ann"), ("b", "")] * 3):
        sent_at = at(n * 700).isoformat()
        log.owner.append(channel, [f'{{"text": "one {n}", "user": "{user}", "sent_at": "{sent_at}"}}'])
    log.owner.append("b", ["{}"])
    question = Question(url=log.url, timezone="Asia/Kolkata", fields=Fields(sender="user", time="sent_at"))
    before = {key: log.spark.conf.get(key) for key, *_ in COMPILED}
    (tmp_path / "few" / "sessions").mkdir(parents=True)
    (tmp_path / "few" / "sessions" / "part-of-another-run.parquet").touch()
    many = analyze(log.spark, question, NOW, str(tmp_path / "many"))
    try:
        with Copy(question, 2) as copy:
            assert copy.size().few
            few = analyze(log.spark, question, NOW, str(tmp_path / "few"), copy=copy)
    finally:
        for key in before:
            log.spark.conf.unset(key)
        log.spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert (few.read.totals["messages"], few.read.without_time) == (12, 1)
    assert few.session_lengths is not None
    assert few.replies is not None
    assert in_order(few) == in_order(many)
    names = {path.name for path in (tmp_path / "many").iterdir()}
    assert len(names) == 13
    for name in names:
        one, other = (pq.read_table(tmp_path / folder / name) for folder in ("few", "many"))
        assert (one.schema.names, one.schema.types) == (other.schema.names, other.schema.types)
        assert sorted(map(str, one.to_pylist())) == sorted(map(str, other.to_pylist())), name


def test_a_stage_that_fails_ends_the_run_and_keeps_others_from_beginning(spark: SparkSession) -> None:
    go = threading.Event()

    def fail() -> None:
        raise BadOption("no")

    def run() -> None:
        with side_by_side(spark) as begin:
            stages: list[Future[Any]] = [begin(go.wait) for _ in range(AT_ONCE - 1)]
            # The last of these finds no thread free.
            last: list[Callable[[], object]] = [fail, go.wait, go.wait]
            stages += [begin(stage) for stage in last]
            begun.extend(stages)
            raise_first(stages)

    begun: list[Future[Any]] = []
    with pytest.raises(BadOption, match="no"):
        run()
    go.set()
    assert [stage.cancelled() for stage in begun][-1]


def test_the_live_log_between_two_times(log: Log) -> None:
    log.owner.append("chat.a", ["1", "2"])
    middle = log.owner.value("select clock_timestamp()")
    log.owner.append("chat.a", ["3"])
    for since, until, count in ((None, None, 3), (middle, None, 1), (None, middle, 2), (middle, middle, 0)):
        question = Question(url=log.url, since=since, until=until)
        assert read_messages(log.spark, question).count() == count


def test_a_database_that_is_away_is_told_in_the_page(spark: SparkSession, tmp_path: Path) -> None:
    source = write_export(tmp_path / "export", SAID)
    question = Question(source=source, url="postgresql://nobody:secret@127.0.0.1:1/none")
    html = page.render(analyze(spark, question, NOW), "Away")
    assert "Nothing is known about deliveries: Postgres cannot be reached" in html
    assert "secret" not in html
