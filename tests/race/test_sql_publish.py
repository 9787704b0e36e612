"""`gapless.publish` in a user's own transaction: visible if and when that commits, in channel order, and
nobody waits for a long one."""

from __future__ import annotations

import asyncio
import re

import asyncpg
import pytest

from tests.conftest import Database
from tests.race.support import (
    appenders,
    check_log,
    one,
    publish,
    rows,
    sessions,
    stored,
)


@pytest.mark.parametrize("commits", [True, False])
async def test_a_long_transaction_blocks_nobody(
    database: Database, owner: asyncpg.Connection, commits: bool
) -> None:
    async with sessions(database.owner_url, 1) as (long,), appenders(database, 1) as (appender,):
        transaction = long.transaction()
        await transaction.start()
        await publish(long, "a", '"early"')
        for number in range(5):
            assert stored((await appender.append([one("a", str(number))]))[0]).positions[0].seq == number + 1
        assert len(await rows(owner)) == 5, "nothing of an open transaction is seen"
        await (transaction.commit() if commits else transaction.rollback())
        stored((await appender.append([one("a", '"late"')]))[0])
    early = ['"early"'] if commits else []
    assert [r["data"] for r in await rows(owner)] == ["0", "1", "2", "3", "4", *early, '"late"']
    assert await owner.fetchval("select count(*) from gapless.outbox") == 0
    await check_log(owner)


@pytest.mark.parametrize(
    "setting",
    [
        "standard_conforming_strings = off",
        "backslash_quote = off",
        "datestyle = 'German'",
        "timezone = 'Asia/Kathmandu'",
        "intervalstyle = 'sql_standard'",
        "bytea_output = 'escape'",
        "extra_float_digits = -15",
        "array_nulls = off",
        "transform_null_equals = on",
        "quote_all_identifiers = on",
        "row_security = on",
        "search_path = ''",
    ],
)
async def test_settings_of_its_session_change_nothing(
    database: Database, owner: asyncpg.Connection, setting: str
) -> None:
    sql = "select gapless.publish($1, $2, $3, $4, $5, 3.5)"
    message = ("a.b", '{"text": "\\u00e9\\n", "size": 0.1}', "k", "sent", '{"n": "v"}')
    async with sessions(database.owner_url, 1) as (session,):
        await session.execute(sql, *message)
        await session.execute(f"set {setting}")
        await session.execute(sql, *message)
        with pytest.raises(asyncpg.PostgresError, match="control character"):
            await session.execute(sql, "a", "1", "k\n", "sent", "{}")
    found = await owner.fetch(
        "select channel_id, type, key, data, headers, expires_at - created_at from gapless.messages"
    )
    assert len(found) == 2
    assert found[0] == found[1]


async def test_no_function_depends_on_what_a_backslash_means(owner: asyncpg.Connection) -> None:
    """A plain text with one means something else with `standard_conforming_strings` off."""
    sources = await owner.fetch(
        "select p.proname, p.prosrc from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
        " where n.nspname in ('gapless', 'gapless_internal')"
    )
    assert len(sources) > 100
    plain = re.compile(r"(?<![Ee\w])'[^'\\]*\\")
    for name, source in sources:
        code = re.sub(r"--.*", "", source)
        assert not plain.search(re.sub(r"\bE'(?:[^'\\]|\\.|'')*'", "", code)), name


async def test_many_messages_in_one_transaction(database: Database, owner: asyncpg.Connection) -> None:
    """All of them in the order in which they were published, by one append and one pass over each."""
    async with sessions(database.owner_url, 1) as (session,), session.transaction():
        await session.execute(
            "select gapless.publish('c' || n % 7, to_jsonb(n)) from generate_series(1, 10000) n"
        )
    found = await rows(owner)
    assert [int(r["data"]) for r in found] == list(range(1, 10_001))
    assert len({r["id"] for r in found}) == 10_000
    assert await owner.fetchval("select count(*) from gapless.outbox") == 0
    assert await owner.fetchval("select count(distinct xmin::text) from gapless.messages") == 1
    await check_log(owner)


async def test_a_savepoint_takes_back_what_came_after_it(
    database: Database, owner: asyncpg.Connection
) -> None:
    async with sessions(database.owner_url, 1) as (session,), session.transaction():
        await publish(session, "a", "1")
        inner = session.transaction()
        await inner.start()
        await publish(session, "a", "2")
        await publish(session, "b", "3")
        await inner.rollback()
        await publish(session, "a", "4")
    assert [(r["channel"], r["data"], r["seq"]) for r in await rows(owner)] == [("a", "1", 1), ("a", "4", 2)]


async def test_whatever_the_constraints_it_takes_no_lock_before_the_commit(
    database: Database, owner: asyncpg.Connection
) -> None:
    """Whoever could have it appended early could keep the channel for as long as it likes."""
    async with sessions(database.owner_url, 1) as (session,), appenders(database, 1) as (appender,):
        transaction = session.transaction()
        await transaction.start()
        await session.execute(IMMEDIATE)
        await publish(session, "a", "1")
        await session.execute(f"{IMMEDIATE}; {IMMEDIATE}")
        await session.execute("set constraints gapless.publish_at_commit immediate")
        await publish(session, "b", "2")
        await session.execute(f"do $$ begin {IMMEDIATE}; {IMMEDIATE}; end $$")
        assert stored((await appender.append([one("a", "3")]))[0]).positions[0].seq == 1
        assert await rows(owner, "b") == []
        await transaction.commit()
    assert [r["data"] for r in await rows(owner)] == ["3", "1", "2"]
    assert await owner.fetchval("select count(*) from gapless.outbox") == 0
    assert await owner.fetchval("select count(*) from gapless.commits") == 0
    await check_log(owner)


@pytest.mark.parametrize("first", ["outside", "inside"])
async def test_a_savepoint_takes_back_what_immediate_constraints_left(
    database: Database, owner: asyncpg.Connection, first: str
) -> None:
    async with sessions(database.owner_url, 1) as (session,), session.transaction():
        if first == "outside":
            await publish(session, "a", "1")
        inner = session.transaction()
        await inner.start()
        await publish(session, "a", "2")
        await session.execute(IMMEDIATE)
        await publish(session, "b", "3")
        await inner.rollback()
        await publish(session, "a", "4")
    assert [r["data"] for r in await rows(owner)] == (["1", "4"] if first == "outside" else ["4"])
    await check_log(owner)


IMMEDIATE = "set constraints all immediate"

NOTED = """
create table noted (setting text, value text);
create function note() returns trigger language plpgsql as $$
begin
    insert into noted select s, current_setting(s, true)
    from unnest(array['synchronous_commit', 'lock_timeout', 'idle_in_transaction_session_timeout',
                      'transaction_timeout']) s;
    return null;
end $$;
create table mine (n integer);
create constraint trigger later after insert on mine deferrable initially deferred
    for each row execute function note();
"""


@pytest.mark.usefixtures("as_it_is")
async def test_what_a_session_says_does_not_count_at_its_commit(
    database: Database, owner: asyncpg.Connection
) -> None:
    """What is seen before it is on disk, a crash could take back from under a cursor. And from the moment
    when ids and locks are held, the database itself ends whoever lingers."""
    async with sessions(database.admin_url, 1) as (session,):
        await session.execute(NOTED)
        await session.execute("set synchronous_commit = off; set lock_timeout = 0")
        async with session.transaction():
            await publish(session, "a")
            await session.execute(IMMEDIATE)
            await session.execute("set constraints all deferred; set local synchronous_commit = off")
            # What comes after the messages, just before the commit, sees what the commit will do.
            await session.execute("insert into mine values (1)")
        found = await session.fetch("select setting, value from noted")
        noted = {row["setting"]: row["value"] for row in found}
        assert noted.pop("synchronous_commit") == "on"
        assert {value for value in noted.values() if value is not None} == {"5s"}
        assert await session.fetchval("show synchronous_commit") == "off"
        assert await session.fetchval("show lock_timeout") == "0"
    assert len(await rows(owner)) == 1


async def test_what_applies_a_replication_publishes_too(
    database: Database, owner: asyncpg.Connection
) -> None:
    """Where `session_replication_role` is `replica`, most triggers do not run."""
    async with sessions(database.admin_url, 1) as (session,):
        await session.execute("set session_replication_role = replica")
        await publish(session, "a", "1")
    assert [r["data"] for r in await rows(owner)] == ["1"]


async def test_of_messages_without_end_in_one_transaction_it_says_so(
    database: Database, owner: asyncpg.Connection
) -> None:
    big = "select gapless.publish('a', to_jsonb(repeat('x', 1000000))) from generate_series(1, $1::integer) n"
    async with sessions(database.owner_url, 1) as (session,):
        await session.execute(big, 3)
        with pytest.raises(asyncpg.ProgramLimitExceededError, match="one transaction"):
            await session.execute(big, 34)
        async with session.transaction():
            await session.execute(big, 2)
            inner = session.transaction()
            await inner.start()
            await session.execute(big, 30)
            await inner.rollback()
            await session.execute(big, 3)
    assert len(await rows(owner)) == 8


async def test_under_repeatable_read_a_raced_commit_is_refused(
    database: Database, owner: asyncpg.Connection
) -> None:
    """A snapshot older than the channel's head cannot follow it: the commit fails as a serialization failure,
    nothing is stored, and the caller repeats the transaction."""
    async with sessions(database.owner_url, 1) as (session,), appenders(database, 1) as (appender,):
        await appender.append([one("a", "1")])
        transaction = session.transaction(isolation="repeatable_read")
        await transaction.start()
        await publish(session, "a", "2")
        await appender.append([one("a", "3")])
        with pytest.raises(asyncpg.SerializationError):
            await transaction.commit()
        async with session.transaction(isolation="repeatable_read"):
            await publish(session, "a", "4")
    assert [r["data"] for r in await rows(owner)] == ["1", "3", "4"]
    await check_log(owner)


async def test_transactions_that_end_at_once_keep_their_channels_in_order(
    database: Database, owner: asyncpg.Connection
) -> None:
    async with sessions(database.owner_url, 6) as many:

        async def work(number: int, session: asyncpg.Connection) -> None:
            for turn in range(20):
                transaction = session.transaction()
                await transaction.start()
                for _ in range(3):
                    await publish(session, f"c{(number + turn) % 3}", f'"{number} {turn}"')
                await (transaction.rollback() if turn % 4 == 3 else transaction.commit())

        await asyncio.gather(*(work(n, session) for n, session in enumerate(many)))
    found = await rows(owner)
    assert len(found) == 6 * 15 * 3
    for channel in ("c0", "c1", "c2"):
        datas = [r["data"] for r in found if r["channel"] == channel]
        assert datas == [d for d in datas[::3] for _ in range(3)], "a transaction's messages stand together"
    await check_log(owner)
