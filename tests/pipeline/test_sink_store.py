"""The sink's ledger: whatever is repeated, at the same time or later, a batch is published once."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pyarrow as pa
import pytest
from gapless_spark.errors import AccessDenied, QueryFailed
from gapless_spark.sink_errors import BadRow, BatchChanged, BatchIncomplete
from gapless_spark.sink_rows import SinkColumns
from gapless_spark.sink_store import BatchKey, Store

from tests.conftest import Database
from tests.pipeline.sinks import KEY, bind, counts, login, staged
from tests.race.support import IMMEDIATE, blocked, check_log, publish, rows, sessions, until_waiting

PUBLISH = "select * from gapless.spark_publish('default', 'q', 7, $1, 1000000, 100)"


@pytest.fixture
async def url(database: Database) -> str:
    """A login that may publish and nothing else."""
    return await login(database, "publisher")


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    with Store(url, patience_s=20) as made:
        yield made


async def data(owner: asyncpg.Connection) -> list[str]:
    await check_log(owner)
    return [row["data"] for row in await rows(owner)]


async def test_a_batch_is_published_in_order_and_leaves_one_note(
    store: Store, owner: asyncpg.Connection
) -> None:
    second = staged(store, KEY, ["3"])
    first = staged(store, KEY, ["1", "2"])
    staged(store, KEY, ["99"])  # An attempt that Spark does not count.
    assert await data(owner) == [], "nobody sees what is staged"
    bind(store, KEY, (first, 2), (second, 1))
    store.publish(KEY)
    store.tidy(KEY)
    assert await data(owner) == ["1", "2", "3"]
    assert await counts(owner) == (1, 0, 0)


@pytest.mark.parametrize("partitions", [1, 3])
async def test_a_batch_that_comes_again_is_counted_and_not_stored(
    store: Store, owner: asyncpg.Connection, partitions: int
) -> None:
    attempt = staged(store, KEY, ["1", "2", "3"])
    late = [(staged(store, KEY, ["9"] * (3 // partitions)), 3 // partitions) for _ in range(partitions)]
    bind(store, KEY, (attempt, 3))
    with pytest.raises(AssertionError):
        staged(store, KEY, ["5"])
    bind(store, KEY, *late)
    store.publish(KEY)
    store.publish(KEY)
    assert await data(owner) == ["1", "2", "3"], "what was bound first, whatever the layout is now"


async def test_many_small_partitions_with_many_channels(store: Store, owner: asyncpg.Connection) -> None:
    """Names are numbered across chunks; what is null in one chunk need not be in another."""
    columns = SinkColumns(frozenset({"channel", "data", "key"}), None)
    attempts = []
    for n in range(20):
        names = [f"c{(n * i) % 7}" for i in range(10)]
        keys = [None] * 10 if n % 2 else [str(n)] * 10
        batch = pa.record_batch(
            {"channel": names, "data": [str(100 * n + i) for i in range(10)], "key": keys}
        )
        attempt = str(uuid.uuid4())
        for number, part in enumerate((batch.slice(0, 6), batch.slice(6))):
            (chunk,) = columns.chunks(iter([part]), "partition 0")
            assert store.stage(KEY, "run", attempt, number, chunk)
        attempts.append((attempt, 10))
    bind(store, KEY, *attempts)
    store.publish(KEY)
    assert await data(owner) == [str(100 * n + i) for n in range(20) for i in range(10)]
    wrong = await owner.fetch(
        "select m.id from gapless.messages m join gapless.channels c on c.id = m.channel_id"
        " cross join lateral (select (m.data::text)::int / 100 as n, (m.data::text)::int % 100 as i) x"
        " where c.name <> 'c' || (n * i) % 7 or m.key is distinct from case when n % 2 = 0 then n::text end"
    )
    assert not wrong


async def test_a_crash_between_two_partitions(store: Store, owner: asyncpg.Connection, url: str) -> None:
    attempts = [(staged(store, KEY, [str(n)]), 1) for n in range(4)]
    bind(store, KEY, *attempts)
    async with sessions(url, 1) as (session,):
        assert [tuple(row) for row in await session.fetch(PUBLISH, 2)] == [(2, 4)]
        assert [tuple(row) for row in await session.fetch(PUBLISH, 0)] == [(3, 4)], "one at least"
    assert await data(owner) == ["0", "1", "2"]
    with Store(url) as again:
        bind(again, KEY, *attempts)
        again.publish(KEY)
    assert await data(owner) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("commits", [True, False])
async def test_who_publishes_at_the_same_time_waits_and_finds_it_done(
    store: Store, owner: asyncpg.Connection, url: str, commits: bool
) -> None:
    bind(store, KEY, (staged(store, KEY, ["1", "2"]), 2))
    async with sessions(url, 1) as (first,):
        transaction = first.transaction()
        await transaction.start()
        await first.fetchrow(PUBLISH, 10)
        second = await blocked(owner, asyncio.to_thread(store.publish, KEY))
        await (transaction.commit() if commits else transaction.rollback())
        await second
    assert await data(owner) == ["1", "2"]


async def test_who_binds_at_the_same_time_waits_and_follows(
    store: Store, owner: asyncpg.Connection, url: str
) -> None:
    mine, theirs = staged(store, KEY, ["1"]), staged(store, KEY, ["2"])
    async with sessions(url, 1) as (first,):
        transaction = first.transaction()
        await transaction.start()
        sql = "select gapless.spark_bind('default', 'q', 7, $1::text[]::uuid[], '{1}', 1, true)"
        await first.execute(sql, [theirs])
        second = await blocked(owner, asyncio.to_thread(bind, store, KEY, (mine, 1)))
        await transaction.commit()
        await second
    store.publish(KEY)
    assert await data(owner) == ["2"]


async def test_a_connection_cut_while_publishing_is_made_again(
    store: Store, owner: asyncpg.Connection, database: Database
) -> None:
    bind(store, KEY, (staged(store, KEY, ["1"]), 1))
    async with sessions(database.owner_url, 1) as (other,), other.transaction():
        await publish(other, "a", "0")
        await other.execute(IMMEDIATE)
        work = await blocked(owner, asyncio.to_thread(store.publish, KEY))
        async with sessions(database.admin_url, 1) as (admin,):
            cut = "select pg_terminate_backend(pid) from pg_stat_activity where query like '%spark_publish(%'"
            await admin.execute(f"{cut} and pid <> pg_backend_pid() and datname = current_database()")
        await until_waiting(owner)
    await work
    assert await data(owner) == ["0", "1"]


async def test_another_number_of_rows_is_another_batch(store: Store, owner: asyncpg.Connection) -> None:
    attempt = staged(store, KEY, ["1", "2"])
    other = staged(store, KEY, ["1", "2", "3"])
    bind(store, KEY, (attempt, 2))
    with pytest.raises(BatchChanged, match=r"batch 7 of query q: .* had 2 rows .* has 3 now"):
        bind(store, KEY, (other, 3))
    bind(store, KEY, (other, 3), verify=False)
    store.publish(KEY)
    assert await data(owner) == ["1", "2"]


async def test_a_batch_before_the_newest_is_refused(store: Store, owner: asyncpg.Connection) -> None:
    bind(store, KEY, (staged(store, KEY, ["1"]), 1))
    earlier = BatchKey("default", "q", 6)
    with pytest.raises(BatchChanged, match="batch 7 of this query was written before"):
        bind(store, earlier, (staged(store, earlier, ["0"]), 1))
    elsewhere = BatchKey("default", "other", 6)
    bind(store, elsewhere, (staged(store, elsewhere, ["0"]), 1))
    assert (await counts(owner))[0] == 2


async def test_what_was_bound_is_not_discarded_and_what_was_discarded_not_bound(
    store: Store, owner: asyncpg.Connection
) -> None:
    gone, kept = staged(store, KEY, ["1"]), staged(store, KEY, ["2"])
    store.discard([gone])
    with pytest.raises(BatchIncomplete, match="run the query or job again"):
        bind(store, KEY, (gone, 1), (kept, 1))
    with pytest.raises(BatchIncomplete):
        bind(store, KEY, (kept, 2))
    bind(store, KEY, (kept, 1))
    store.discard([kept])
    store.publish(KEY)
    assert await data(owner) == ["2"]


async def test_an_empty_batch(store: Store, owner: asyncpg.Connection) -> None:
    bind(store, KEY)
    store.publish(KEY)
    store.tidy(KEY)
    assert await counts(owner) == (1, 0, 0)


async def test_what_nobody_comes_back_for_is_removed(store: Store, owner: asyncpg.Connection) -> None:
    await owner.execute(
        "insert into gapless.spark_batches (namespace_id, query, batch, attempts, row_count)"
        " select 1, q, n, '{}', 0 from generate_series(0, 299) n cross join unnest(array['q', 'other']) q;"
        "insert into gapless.spark_batches (namespace_id, query, batch, attempts, row_count, bound_at)"
        " values (1, 'old', -1, '{}', 0, now() - interval '31 days'), (1, 'young', -1, '{}', 0, now());"
        "insert into gapless.spark_attempts"
        " (id, namespace_id, query, batch, run, row_count, byte_count, channel_count, bound, started_at)"
        " values (gen_random_uuid(), 1, 'lost', 5, 'r', 1, 1, 1, false, now() - interval '8 days'),"
        " (gen_random_uuid(), 1, 'kept', 5, 'r', 1, 1, 1, false, now() - interval '6 days'),"
        " (gen_random_uuid(), 1, 'stream', 5, 'r', 1, 1, 1, true, now() - interval '400 days')"
    )
    key = BatchKey("default", "q", 300)
    bind(store, key, (staged(store, key, ["1"]), 1))
    store.publish(key)
    store.tidy(key)
    left = await owner.fetch(
        "select query, min(batch), max(batch) from gapless.spark_batches group by query order by query"
    )
    assert [tuple(row) for row in left] == [("other", 0, 299), ("q", 201, 300), ("young", -1, -1)]
    assert {row["query"] for row in await owner.fetch("select query from gapless.spark_attempts")} == {
        "kept",
        "stream",
    }


async def test_what_earlier_runs_staged_does_not_pile_up(store: Store, owner: asyncpg.Connection) -> None:
    staged(store, KEY, ["1"], run="run 1")
    await owner.execute("update gapless.spark_attempts set started_at = now() - interval '11 minutes'")
    staged(store, KEY, ["1"], run="run 1")
    assert await counts(owner) == (0, 2, 2), "a long batch keeps what it has"
    staged(store, KEY, ["1"], run="run 2")
    assert await counts(owner) == (0, 2, 2), "what is young may belong to somebody alive"
    assert await owner.fetchval(
        "select array_agg(distinct run order by run) from gapless.spark_attempts"
    ) == [
        "run 1",
        "run 2",
    ]


ALL = pa.schema(
    [
        ("channel", pa.string()),
        ("type", pa.string()),
        ("key", pa.string()),
        ("data", pa.string()),
        ("binary", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("ttl", pa.float64()),
    ]
)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"channel": "a..b"}, "channel: must be 1 to 255"),
        ({"type": ""}, "type: must be 1 to 128"),
        ({"key": "a\nb"}, "key: must be at most 255"),
        ({"data": "hello"}, "data: is not JSON"),
        ({"data": '"a line\nand another"'}, "data: is not JSON"),
        ({"data": '"' + "x" * 2**20 + '"'}, "data: is longer than 1048576 bytes"),
        ({"headers": [("a", None)]}, "headers: has a value that is not a string"),
        ({"headers": [("a", "1"), ("a", "2")]}, "headers: has the same key twice"),
        ({"headers": [("a", "x\0")]}, "headers: holds \\u0000"),
        ({"headers": [(str(n), "") for n in range(65)]}, "headers: has more than 64 entries"),
        ({"headers": [("a", "ü" * 4096)]}, "headers: takes more than 8192 bytes"),
        ({"ttl": 0.0}, "ttl: must be above 0"),
        ({"ttl": float("nan")}, "ttl: must be above 0"),
    ],
)
async def test_the_first_row_that_the_database_refuses_is_named(
    store: Store, owner: asyncpg.Connection, row: dict[str, Any], said: str
) -> None:
    good: dict[str, Any] = {"channel": "a", "key": "k", "data": "1"}
    table = pa.Table.from_pylist([good] * 6_001 + [good | row, good | {"ttl": -1.0}], ALL)
    attempt = str(uuid.uuid4())
    first, second = SinkColumns(frozenset(ALL.names), None).chunks(
        iter(table.to_batches(4_000)), "partition 3"
    )
    assert store.stage(KEY, "run", attempt, 0, first)
    with pytest.raises(BadRow) as caught:
        store.stage(KEY, "run", attempt, 1, second)
    told = str(caught.value)
    assert told.startswith("row 6001 of partition 3 (counted from 0; channel 'a")
    assert said in told
    assert told.endswith(". Nothing of this batch is stored")
    assert (await counts(owner))[2] == 1, "the chunk before it"


UNFIT = {
    "a channel": "array['a b'], '{1}', null, null, '{1}', null, null, null",
    "a channel twice": "array['a', 'a'], '{1}', null, null, '{1}', null, null, null",
    "a channel for nothing": "array['a', 'b'], '{1}', null, null, '{1}', null, null, null",
    "no such channel": "array['a'], '{2}', null, null, '{1}', null, null, null",
    "lengths": "array['a'], '{1}', null, null, '{1,2}', null, null, null",
    "no rows": "array['a'], '{}', null, null, null, null, null, null",
    "no payload": "array['a'], '{1}', null, null, null, null, null, null",
    "two payloads": "array['a'], '{1}', null, null, '{1}', array['x'::bytea], null, null",
    "a type": "array['a'], '{1}', array[''], null, '{1}', null, null, null",
    "no type": "array['a'], '{1}', array[null], null, '{1}', null, null, null",
    "a key": "array['a'], '{1}', null, array[E'\\t'], '{1}', null, null, null",
    "no JSON": "array['a'], '{1}', null, null, array['x'], null, null, null",
    "two lines": "array['a'], '{1}', null, null, array[E'[\\n]'], null, null, null",
    "a large one": "array['a'], '{1}', null, null, array[repeat('1', 1048577)], null, null, null",
    "headers": "array['a'], '{1}', null, null, '{1}', null, array['[]'], null",
    "a header": "array['a'], '{1}', null, null, '{1}', null, array['{\"a\": 1}'], null",
    "a ttl": "array['a'], '{1}', null, null, '{1}', null, null, '{0}'",
}


@pytest.mark.parametrize("arguments", UNFIT.values(), ids=UNFIT.keys())
async def test_a_publisher_cannot_stage_what_no_message_may_be(
    url: str, owner: asyncpg.Connection, arguments: str
) -> None:
    async with sessions(url, 1) as (session,):
        with pytest.raises(asyncpg.PostgresError) as caught:
            await session.execute(
                f"select gapless.spark_stage('default', 'q', 7, 'r', gen_random_uuid(), 0, {arguments})"
            )
    assert caught.value.sqlstate in ("22023", "GS004")
    assert await counts(owner) == (0, 0, 0)


async def test_errors_for_people(database: Database, url: str) -> None:
    with Store(url, patience_s=0) as store:
        nowhere = BatchKey("nowhere", "q", 7)
        with pytest.raises(AccessDenied, match="in its own namespace only"):
            staged(store, nowhere, ["1"])
    reader = await login(database, "reader")
    with (
        Store(reader, patience_s=0) as store,
        pytest.raises((AccessDenied, QueryFailed), match="grant_publisher"),
    ):
        staged(store, KEY, ["1"])
