"""`gapless.publish` in a user's own transaction: visible if and when that commits, in channel order, and
nobody waits for a long one."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from tests.conftest import Database
from tests.race.support import (
    IMMEDIATE,
    appenders,
    blocked,
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


async def test_a_savepoint_takes_back_what_was_appended_at_once(
    database: Database, owner: asyncpg.Connection
) -> None:
    async with sessions(database.owner_url, 1) as (session,), appenders(database, 1) as (appender,):
        transaction = session.transaction()
        await transaction.start()
        await publish(session, "a", "1")
        await session.execute(IMMEDIATE)
        inner = session.transaction()
        await inner.start()
        await publish(session, "a", "2")
        await publish(session, "b", "3")
        await inner.rollback()
        # The savepoint's locks went with it: only the first channel is still held.
        assert stored((await appender.append([one("b", "4")]))[0]).positions[0].seq == 1
        waiting = await blocked(owner, appender.append([one("a", "5")]))
        await publish(session, "a", "6")
        await transaction.commit()
        assert stored((await waiting)[0]).positions[0].seq == 3
    assert [r["data"] for r in await rows(owner, "a")] == ["1", "6", "5"]
    await check_log(owner)


async def test_appended_at_once_it_is_bounded_in_time(database: Database) -> None:
    """From the moment when ids and locks are held, the database itself ends whoever lingers."""
    async with sessions(database.owner_url, 1) as (session,):
        await session.execute("set idle_in_transaction_session_timeout = 0; set lock_timeout = 0")
        async with session.transaction():
            await publish(session, "a")
            assert await session.fetchval("show idle_in_transaction_session_timeout") == "0"
            await session.execute(IMMEDIATE)
            for setting in ("idle_in_transaction_session_timeout", "lock_timeout"):
                assert await session.fetchval(f"show {setting}") == "5s"
            if session.get_server_version().major >= 17:
                assert await session.fetchval("show transaction_timeout") == "5s"
        assert await session.fetchval("show idle_in_transaction_session_timeout") == "0"


async def test_a_commit_is_on_disk_whatever_the_session_says(database: Database) -> None:
    """What is seen before it is on disk, a crash could take back from under a cursor."""
    async with sessions(database.owner_url, 1) as (session,):
        await session.execute("set synchronous_commit = off")
        async with session.transaction():
            await publish(session, "a")
            await session.execute(IMMEDIATE)
            assert await session.fetchval("show synchronous_commit") == "on"
        assert await session.fetchval("show synchronous_commit") == "off"


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
