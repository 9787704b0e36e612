"""Rows of the sink that change other messages: what becomes of them, and what a refused one does."""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pyarrow as pa
import pytest
from gapless_spark import sink
from gapless_spark.errors import SchemaTooOld
from gapless_spark.sink_errors import BadRow, ChangeRefused, PartitionTooLarge
from gapless_spark.sink_rows import SinkColumns
from gapless_spark.sink_store import CHANGE_ROWS, CHANGES_SCHEMA, BatchKey, Store

from tests.conftest import Database
from tests.pipeline.sinks import KEY, bind, counts, login, staged
from tests.race.support import check_log, publish, sessions

SCHEMA_OF_ROWS = pa.schema(
    [
        ("channel", pa.string()),
        ("key", pa.string()),
        ("data", pa.string()),
        ("binary", pa.binary()),
        ("target", pa.int64()),
        ("action", pa.string()),
        ("through", pa.int32()),
        ("annotation", pa.string()),
        ("mode", pa.string()),
        ("remove", pa.bool_()),
    ]
)
COLUMNS = SinkColumns(frozenset(SCHEMA_OF_ROWS.names), None)
PLAIN = SinkColumns(frozenset({"channel", "data"}), None)
Row = dict[str, Any]

LOG = (
    "select c.name, m.data::text, m.change::text from gapless.messages m"
    " join gapless.channels c on c.id = m.channel_id where m.id > 3 order by m.id"
)
LATEST = (
    "select l.id, u.data::text, l.deleted, l.replies, gapless.annotations_of(l.channel_id, l.id)::text"
    " from gapless.latest l left join gapless.messages u on u.id = l.updated_by order by l.id"
)


@pytest.fixture
async def url(database: Database) -> str:
    """A login that publishes as `ann`, where credentials are required."""
    return await login(database, "publisher", grant="'{>}', 'default', 'ann'")


@pytest.fixture
async def store(database: Database, owner: asyncpg.Connection, url: str) -> AsyncIterator[Store]:
    """Of that login; channel `a` has the messages 1 and 2 of `ann`, and 3 of somebody else."""
    async with sessions(url, 1) as (ann,):
        await publish(ann, "a", "1")
        await publish(ann, "a", "2")
    await publish(owner, "a", "3")
    await owner.execute("update gapless.log set credentials_required = true")
    with Store(url, patience_s=20, schema=CHANGES_SCHEMA) as made:
        yield made


def attempted(store: Store, rows: list[Row], key: BatchKey = KEY) -> tuple[str, int]:
    """An attempt of these rows, and their number."""
    attempt = str(uuid.uuid4())
    batches = pa.Table.from_pylist([{"channel": "a"} | row for row in rows], SCHEMA_OF_ROWS).to_batches()
    for number, chunk in enumerate(COLUMNS.chunks(iter(batches), "partition 0")):
        assert store.stage(key, "run", attempt, number, chunk)
    return attempt, len(rows)


EVERYTHING: list[Row] = [
    {"data": '"new"', "target": 1, "action": "update"},
    {"data": '"beside"'},
    {"target": 1, "action": "annotate", "annotation": "like", "mode": "distinct", "key": "k"},
    {"target": 1, "action": "annotate", "annotation": "seen", "mode": "flag"},
    {"target": 1, "action": "annotate", "annotation": "seen", "mode": "flag", "remove": True},
    {"data": '"no"', "target": 3, "action": "reply"},
    {"target": 2, "action": "delete"},
    {"binary": b"\x01", "target": 3, "action": "reply"},
]


async def test_changes_are_published_in_order(store: Store, owner: asyncpg.Connection) -> None:
    bind(store, KEY, attempted(store, EVERYTHING[:5]), attempted(store, EVERYTHING[5:]))
    store.publish(KEY)
    store.publish(KEY)
    await check_log(owner)
    assert [tuple(row) for row in await owner.fetch(LOG)] == [
        ("a", '"new"', '{"target":1,"action":"update"}'),
        ("a", '"beside"', None),
        ("a", "null", '{"target":1,"action":"annotate","annotation":"like","mode":"distinct"}'),
        ("a", "null", '{"target":1,"action":"annotate","annotation":"seen","mode":"flag"}'),
        ("a", "null", '{"target":1,"action":"annotate","annotation":"seen","mode":"flag","remove":true}'),
        ("a", '"no"', '{"target":3,"action":"reply"}'),
        ("a", "null", '{"target":2,"action":"delete"}'),
        ("a", None, '{"target":3,"action":"reply"}'),
    ]
    assert [tuple(row) for row in await owner.fetch(LATEST)] == [
        (1, '"new"', False, 0, '{ "like" : {"keys": {"k": 1}, "distinct": 1} }'),
        (2, None, True, 0, "{}"),
        (3, None, False, 2, "{}"),
    ]


REFUSED: list[tuple[Row, str]] = [
    (
        {"target": 77, "action": "reply"},
        "reply of message 77 in channel a: no message of this channel is the target",
    ),
    (
        {"channel": "b", "target": 1, "action": "reply"},
        "reply of message 1 in channel b: no message of this channel",
    ),
    ({"target": 3, "action": "update"}, "update of message 3 in channel a: somebody else sent the target"),
    ({"target": 1, "through": 3, "action": "delete"}, "delete of message 1 in channel a: somebody else sent"),
    (
        {"target": 4, "action": "reply"},
        "reply of message 4 in channel a: the target changes another message itself",
    ),
]


@pytest.mark.parametrize(
    ("row", "said"), REFUSED, ids=[row["action"] + str(row["target"]) for row, _ in REFUSED]
)
async def test_a_refused_change_fails_the_batch_and_is_left_out_on_demand(
    store: Store, owner: asyncpg.Connection, caplog: pytest.LogCaptureFixture, row: Row, said: str
) -> None:
    async with sessions(store._url, 1) as (ann,):
        await ann.execute("select gapless.publish('a', '0', target => 1, action => 'update')")
    rows: list[Row] = [{"data": "5"}, row, {"data": "6", "target": 2, "action": "update"}, row]
    bind(store, KEY, attempted(store, [{"data": "4"}]), attempted(store, rows))
    for _ in range(2):
        with pytest.raises(ChangeRefused) as caught:
            store.publish(KEY)
        assert said in str(caught.value)
        assert "refused changes: 2; partitions published before: 0 of 2" in str(caught.value)
        assert "option refusedChanges" in str(caught.value)
    assert len(await owner.fetch(LOG)) == 1, "its whole transaction is taken back"
    with caplog.at_level(logging.WARNING, "gapless_spark"):
        store.publish(KEY, skip=True)
        store.publish(KEY, skip=True)
    assert [row["data"] for row in await owner.fetch(LOG)] == ["0", "4", "5", "6"]
    assert sum(said in told for told in caplog.messages) == 2
    assert caplog.messages[-1] == "batch 7 of query q: left out 2 changes that were refused"
    assert await owner.fetchval("select refused from gapless.spark_batches") == 2
    assert await owner.fetchval("select count(*) from gapless.channels") == 1, "none for what is refused"
    await check_log(owner)


async def test_what_was_published_before_a_refused_change_stays_and_is_not_doubled(
    store: Store, owner: asyncpg.Connection
) -> None:
    parts = [attempted(store, [{"data": "4"}]), attempted(store, [{"target": 77, "action": "reply"}])]
    bind(store, KEY, *parts, attempted(store, [{"data": "5"}]))
    async with sessions(store._url, 1) as (session,):
        await session.fetch("select gapless.spark_publish('default', 'q', 7, 0, 0, 0)")
    with pytest.raises(ChangeRefused, match="partitions published before: 1 of 3"):
        store.publish(KEY)
    store.publish(KEY, skip=True)
    assert [row["data"] for row in await owner.fetch(LOG)] == ["4", "5"]


async def test_a_change_that_is_refused_no_more_is_published(store: Store, owner: asyncpg.Connection) -> None:
    bind(store, KEY, attempted(store, [{"data": "4", "target": 3, "action": "update"}]))
    with pytest.raises(ChangeRefused, match="somebody else sent"):
        store.publish(KEY)
    await owner.execute("update gapless.log set credentials_required = false")
    store.publish(KEY)
    assert [row["data"] for row in await owner.fetch(LOG)] == ["4"]


async def test_a_target_may_be_gone_before_the_batch_is_published(
    store: Store, owner: asyncpg.Connection
) -> None:
    bind(store, KEY, attempted(store, [{"target": 1, "action": "reply"}, {"target": 2, "action": "reply"}]))
    await owner.execute("update gapless.channels set trimmed_id = 1 where name = 'a'")
    with pytest.raises(ChangeRefused, match="message 1 in channel a: no message"):
        store.publish(KEY)
    store.publish(KEY, skip=True)
    assert [row["change"] for row in await owner.fetch(LOG)] == ['{"target":2,"action":"reply"}']


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"target": 1}, "action: is required with target"),
        ({"data": "1", "action": "update"}, "target: is required"),
        ({"data": "1", "remove": True}, "target: is required"),
        ({"target": 1, "action": "undo"}, "action: must be"),
        ({"target": 1, "action": "update", "through": 2}, "through: is for delete"),
        ({"target": 2, "action": "delete", "through": 1}, "through: must not be before"),
        ({"target": 2, "action": "reply", "mode": "flag"}, "annotation, mode and remove: are for annotate"),
        ({"target": 1, "action": "annotate", "mode": "flag"}, "annotation: must have 1 to 64"),
        ({"target": 1, "action": "annotate", "annotation": "a", "mode": "many"}, "mode: must be total"),
    ],
)
async def test_a_row_that_is_no_change_is_named_when_it_is_staged(
    store: Store, owner: asyncpg.Connection, row: Row, said: str
) -> None:
    with pytest.raises(BadRow) as caught:
        attempted(store, [{"data": "1"}, {"target": 1, "action": "reply"}, row])
    assert f"row 2 of partition 0 (counted from 0; channel 'a'): {said}" in str(caught.value)
    assert await counts(owner) == (0, 0, 0)


async def test_a_change_counts_as_many_rows(
    store: Store, owner: asyncpg.Connection, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes as long: a partition of too many would be decided and never be published."""
    reply: Row = {"target": 1, "action": "reply"}
    bind(store, KEY, *[attempted(store, rows) for rows in ([{"data": "1"}], [reply], [reply])])
    room = 1 + 2 * CHANGE_ROWS
    async with sessions(url, 1) as (session,):
        sql = "select published from gapless.spark_publish('default', 'q', 7, $1, 1000, 100)"
        assert [await session.fetchval(sql, room - 1) for _ in range(2)] == [2, 3]
    monkeypatch.setattr(sink, "TRANSACTION_ROWS", room)
    target = sink.Target(url, "default", COLUMNS, True)
    rows = [{"channel": "a", "data": "1"} | row for row in ({}, reply, reply, {})]
    batch = pa.Table.from_pylist(rows, SCHEMA_OF_ROWS).to_batches()[0]
    key = BatchKey("default", "q", 8)
    sink.stage(target, key, "run", 0, iter([batch.slice(0, 3)]))
    with pytest.raises(PartitionTooLarge, match=f"a change counts as {CHANGE_ROWS}"):
        sink.stage(target, key, "run", 0, iter([batch]))


@pytest.mark.parametrize(
    ("columns", "skip", "works"),
    [(PLAIN, False, True), (PLAIN, True, False), (COLUMNS, False, False)],
    ids=["plain", "skip", "changes"],
)
async def test_only_who_writes_changes_needs_a_database_that_has_them(
    url: str, owner: asyncpg.Connection, columns: SinkColumns, skip: bool, works: bool
) -> None:
    await owner.execute("delete from gapless.migrations where version >= $1", CHANGES_SCHEMA)
    with sink.Target(url, "default", columns, True, skip).store() as store:
        if works:
            bind(store, KEY, (staged(store, KEY, ["1"]), 1))
            store.publish(KEY)
        else:
            with pytest.raises(SchemaTooOld, match=f"needs {CHANGES_SCHEMA}"):
                store.tidy(KEY)
    assert await owner.fetchval("select count(*) from gapless.messages") == works
