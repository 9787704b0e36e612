"""The named blocks: parsed as written, prepared against the schema, and planned without reading what is not
asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
import pytest

from app.embedded import EmbeddedPostgres
from db.connect import DatabaseConfig, connect
from db.queries import SQL_DIR, load, parse
from tests.conftest import Database, drop_database, make_database
from tests.patience import PATIENCE_S

ROWS = 50_000
CHANNELS = 200
SEGMENTS = 4
BURST = 12_000
PART = 500


def test_blocks_are_split_at_their_names() -> None:
    blocks = parse("-- name: one\nselect 1\n-- why\n\n-- name: two\n  select 2;\n")
    assert blocks == {"one": "select 1\n-- why", "two": "select 2;"}


def test_a_call_is_a_block() -> None:
    assert parse("-- calls: ack(2), holders(0)\n\n-- name: one\nselect 1\n") == {
        "ack": "select * from gapless.ack($1, $2)",
        "holders": "select * from gapless.holders()",
        "one": "select 1",
    }


@pytest.mark.parametrize("text", ["-- calls: ack", "-- calls: ack(2),reap(1)", "-- calls: a(1), a(2)"])
def test_calls_that_are_none_or_there_twice_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)


@pytest.mark.parametrize(
    "text", ["select 1", "-- a comment\n-- name: one\nselect 1", "-- name: a\n1\n-- name: a\n2"]
)
def test_text_without_a_name_and_a_name_given_twice_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)


def test_every_file_is_loaded() -> None:
    names = [name for file in SQL_DIR.glob("*.sql") for name in parse(file.read_text())]
    assert sorted(names) == sorted(load())


async def test_every_block_prepares_as_the_service(database: Database) -> None:
    session = await connect(DatabaseConfig(database.service_url), application="test", timeout_s=PATIENCE_S)
    try:
        for name, sql in load().items():
            try:
                await session.prepare(sql)
            except asyncpg.PostgresError as error:
                raise AssertionError(f"block {name}: {error}") from error
    finally:
        session.terminate()


PUBLISH = """
select gapless.publish('c' || case when $1 = 0 and n <= 20 then 0 else 1 + n % $2 end, '1')
from generate_series($3::integer, $4::integer) n
"""


async def _fill(database: Database) -> None:
    session: asyncpg.Connection = await asyncpg.connect(database.owner_url)
    await session.execute("select gapless.set_channel(1, 'burst', '{}', false)")
    for number in range(SEGMENTS):
        # In parts: a transaction that publishes has 5 s, on a busy machine too.
        for first in range(1, ROWS // SEGMENTS, PART):
            await session.execute(PUBLISH, number, CHANNELS, first, first + PART - 1)
        if number == SEGMENTS - 2:
            for _ in range(BURST // PART):
                await session.execute(
                    "select gapless.publish('burst', '1') from generate_series(1, $1::integer)", PART
                )
        await session.execute("select gapless.roll_segment(0)")
    await session.execute("analyze gapless.messages; analyze gapless.channels")
    await session.close()


@pytest.fixture(scope="module")
def filled(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """Messages of many channels over several segments; channel c0 has few, and its newest are old. Channel
    burst, the first one, has many, all of them one after the other."""
    made = asyncio.run(make_database(postgres))
    asyncio.run(_fill(made))
    yield made
    asyncio.run(drop_database(postgres, made))


@contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"block {name}: {error}") from error


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


async def _explain(session: asyncpg.Connection, name: str, arguments: tuple[object, ...], mode: str) -> Any:
    """The plan as it ran."""
    sql = load()[name]
    statement = await session.prepare(sql)
    oids = [parameter.oid for parameter in statement.get_parameters()]
    types = [await session.fetchval("select format_type($1, null)", oid) for oid in oids]
    async with session.transaction():
        await session.execute(f"set local plan_cache_mode = force_{mode}_plan; set local jit = off")
        await session.execute(f"set local statement_timeout = '{PATIENCE_S:.0f}s'")
        await session.execute(f"prepare guarded ({', '.join(types)}) as {sql}")
        given = ", ".join(_literal(argument) for argument in arguments)
        plan = await session.fetchval(f"explain (analyze, format json, timing off) execute guarded ({given})")
        await session.execute("deallocate guarded")
    return json.loads(plan)[0]["Plan"]


def _literal(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        inner = ",".join(str(v) for v in value)
        return "'{" + inner + "}'"
    return f"'{value}'" if isinstance(value, str) else str(value)


LAST = 2**53 - 1
BYTES = 8 * 1024 * 1024
HOT = [
    # block, arguments, most rows any part of the plan may touch
    ("page_channel", ("default", "c7", 0, 100, None, None, None, BYTES), 200),
    ("page_channel", ("default", "c7", 40_000, 100, None, None, None, BYTES), 200),
    ("page_channel", ("default", "c0", 0, 100, None, None, None, BYTES), 200),
    ("page_channel", ("default", "burst", 0, 100, None, None, None, BYTES), 200),
    ("page_channels", ("default", ["burst", "c8"], None, 0, LAST, 100, None, None, None, BYTES, 500), 400),
    ("page_channels", ("default", ["c7", "c8"], None, 0, LAST, 100, None, None, None, BYTES, 500), 400),
    ("page_channels", ("default", [], "^c1[0-9]$", 0, LAST, 20, None, None, None, BYTES, 500), 1000),
    ("page_channels", ("default", [], "^c", 0, LAST, 20, None, None, None, BYTES, 500), 1000),
    ("page_from", ([7, 8], [0, 0], 0, LAST, 100, None, None, None, BYTES), 400),
    ("page_from", ([1, 8], [0, 0], 0, LAST, 100, None, None, None, BYTES), 400),
    ("last_starts", ("default", ["burst", "c8"], None, 50, LAST, None, None, None), 400),
    ("first_since", ("default", ["burst"], None, "2020-01-01"), 200),
    ("last_starts", ("default", ["c7", "c8"], None, 50, LAST, None, None, None), 400),
    ("span", (25_000, LAST, 100, BYTES), 200),
    ("heads", (["default", "default"], ["c7", "c8"]), 400),
    ("channel", ("default", "c7"), 400),
    ("history_up", (7, 0, LAST, None, None, None, None, 100, BYTES), 200),
    ("history_down", (7, 0, LAST, None, None, None, None, 100, BYTES), 200),
    ("history_up", (1, 0, LAST, None, None, None, None, 100, BYTES), 200),
    ("history_down", (1, 0, LAST, None, None, None, None, 100, BYTES), 200),
    ("message", (7, 7, 0), 10),
    ("latest_up", (7, 0, LAST, None, None, None, None, 100, BYTES), 200),
    ("latest_down", (7, 0, LAST, None, None, None, None, 100, BYTES), 200),
    ("latest_message", (7, 7, 0), 10),
]


@pytest.mark.parametrize("mode", ["custom", "generic"])
@pytest.mark.parametrize(("name", "arguments", "most"), HOT)
async def test_hot_queries_touch_what_they_give(
    filled: Database, name: str, arguments: tuple[object, ...], most: int, mode: str
) -> None:
    """By index, and row by row: a page costs what it holds, not what the log holds."""
    session: asyncpg.Connection = await asyncpg.connect(filled.owner_url)
    try:
        plan = await _explain(session, name, arguments, mode)
    finally:
        await session.close()
    with _named(name):
        for function in ("admits", "hidden_by"):
            assert function not in json.dumps(plan), (
                f"{function} is a call for each row, not a part of the plan"
            )
        for node in _nodes(plan):
            touched = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
            relation = node.get("Relation Name", "")
            if relation.startswith("messages"):
                assert node["Node Type"] != "Seq Scan" or not node["Actual Loops"] or not touched, node
                assert touched <= most, node


DECISIONS = [
    ("claim", "select * from gapless.claim($1, 9007199254740991, 10)"),
    ("stats", load()["subscription_stats"]),
    ("reap", "select * from gapless.reap($1, 9007199254740991, 10)"),
]
TUPLES_READ = (
    "select coalesce(sum(seq_tup_read + idx_tup_fetch), 0) from pg_stat_xact_user_tables"
    " where schemaname = 'gapless' and relname like $1"
)


@pytest.mark.parametrize(("name", "statement"), DECISIONS)
@pytest.mark.parametrize("channels", [["burst"], ["burst", "c7"]])
async def test_decisions_look_at_what_they_are_about(
    filled: Database, name: str, statement: str, channels: list[str]
) -> None:
    """However far behind a subscription is, and wherever in the log its messages lie."""
    session: asyncpg.Connection = await asyncpg.connect(filled.owner_url)
    try:
        await session.execute("begin")
        subscription = await session.fetchval(
            "select subscription_id from gapless.create_subscription("
            "1, 'behind', $1, $1, null, 'earliest', '{\"message_ttl\": 1000000}')",
            channels,
        )
        await session.fetch(statement.replace("$1", str(subscription)))
        read = await session.fetchval(TUPLES_READ, "messages%")
        await session.execute("rollback")
    finally:
        await session.close()
    assert read < 500, f"{name} read {read} messages"


LETTERS = """
with copies as (
    insert into gapless.kept (channel_id, message_id, channel, seq, created_at, type, data, size)
    select 1, n, 'c', n, now(), 't', '1', 1 from generate_series(1, 20000) n returning id)
insert into gapless.dead_letters
    (namespace_id, subscription_id, kept_id, attempts, created_at, subscription, channel, reason, journey)
select 1, 1, id, 1, now(), case when id % 2000 = 7 then 'few' else 'many' end,
       case when id % 2000 = 8 then 'few' else 'many' end,
       case when id % 2000 = 9 then 'hops' else 'rejected' end, '[]' from copies;
analyze gapless.dead_letters, gapless.kept
"""
FILTERS = [("few", None, None), (None, "few", None), (None, None, "hops"), ("none", None, None)]
OF_LETTERS = [
    ("dead_letters", (0, 100, BYTES, None)),
    ("replay_some", (None, 0, LAST, 500, None, 0, None)),
    ("replayable", (None, None)),
    ("purge_dead_letters", (None, None, 5000)),
]


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize(("name", "arguments"), OF_LETTERS)
async def test_few_dead_letters_among_many(
    filled: Database, name: str, arguments: tuple[object, ...], filters: tuple[str | None, ...]
) -> None:
    """Also once the statement has run so often that Postgres would rather plan it for any filter."""
    session: asyncpg.Connection = await asyncpg.connect(filled.owner_url)
    try:
        await session.execute("begin")
        await session.execute(LETTERS)
        for _ in range(7):
            before = await session.fetchval(TUPLES_READ, "dead_letters")
            await session.fetch(load()[name], 1, *filters, *arguments)
        read = await session.fetchval(TUPLES_READ, "dead_letters") - before
        await session.execute("rollback")
    finally:
        await session.close()
    assert read < 200, f"{name} read {read} dead letters"


@pytest.mark.parametrize("settings", ['{"max_messages": 11990}', '{"max_age": 3600}'])
async def test_retention_looks_at_what_it_moves(filled: Database, settings: str) -> None:
    """Wherever in the log the channel's messages lie."""
    session: asyncpg.Connection = await asyncpg.connect(filled.owner_url)
    try:
        await session.execute("begin")
        await session.fetch("select gapless.set_channel(1, 'burst', $1::jsonb, false)", settings)
        await session.fetch("select gapless.trim_channels(10)")
        read = await session.fetchval(TUPLES_READ, "messages%")
        await session.execute("rollback")
    finally:
        await session.close()
    assert read < 500, f"it read {read} messages"
