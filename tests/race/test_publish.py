"""Two sessions in each order: publishers of one channel, publish against create, against delete."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from subscriptions.domain.model import Append, NewMessage
from subscriptions.domain.watermark import Watermark
from tests.conftest import Database
from tests.patience import eventually
from tests.race.support import (
    IMMEDIATE,
    appenders,
    blocked,
    check_log,
    one,
    publish,
    reader,
    rows,
    sessions,
    stored,
)


@pytest.mark.parametrize("commits", [True, False])
async def test_the_second_publisher_waits_for_the_first(
    database: Database, owner: asyncpg.Connection, commits: bool
) -> None:
    async with sessions(database.owner_url, 1) as (first,), appenders(database, 1) as (second,):
        transaction = first.transaction()
        await transaction.start()
        await publish(first, "a", '"first"')
        await first.execute(IMMEDIATE)
        waiting = await blocked(owner, second.append([one("a", '"second"')]))
        await (transaction.commit() if commits else transaction.rollback())
        (answer,) = await waiting
        assert stored(answer).positions[0].seq == (2 if commits else 1)
    assert [(r["seq"], r["data"]) for r in await rows(owner)] == (
        [(1, '"first"'), (2, '"second"')] if commits else [(1, '"second"')]
    )
    await check_log(owner)


@pytest.mark.parametrize("commits", [True, False])
async def test_publishing_to_a_channel_that_is_being_made(
    database: Database, owner: asyncpg.Connection, commits: bool
) -> None:
    async with sessions(database.owner_url, 1) as (maker,), appenders(database, 1) as (publisher,):
        transaction = maker.transaction()
        await transaction.start()
        made = await maker.fetchval(
            """select channel_id from gapless.set_channel(1, 'a', '{"max_messages": 5}', false)"""
        )
        waiting = await blocked(owner, publisher.append([one("a")]))
        await (transaction.commit() if commits else transaction.rollback())
        (answer,) = await waiting
    (channel,) = await owner.fetch("select id, max_messages from gapless.channels")
    assert stored(answer).positions[0].seq == 1
    assert (channel["id"] == made, channel["max_messages"]) == (commits, 5 if commits else None)
    await check_log(owner)


@pytest.mark.parametrize("commits", [True, False])
async def test_publishing_to_a_channel_that_is_being_deleted(
    database: Database, owner: asyncpg.Connection, commits: bool
) -> None:
    async with sessions(database.owner_url, 1) as (deleter,), appenders(database, 1) as (publisher,):
        before = stored((await publisher.append([one("a"), one("b")]))[0])
        transaction = deleter.transaction()
        await transaction.start()
        assert await deleter.fetchval("select gapless.delete_channel(1, 'a')")
        both = Append("default", (NewMessage("a", b"1"), NewMessage("b", b"1")))
        waiting = await blocked(owner, publisher.append([both]))
        await (transaction.commit() if commits else transaction.rollback())
        answer = stored((await waiting)[0])
    assert [p.seq for p in answer.positions] == ([1, 2] if commits else [2, 2])
    assert (answer.before["a"][0] == before.before["a"][0]) is not commits
    await check_log(owner)


async def test_deleting_a_channel_that_is_being_published_to(
    database: Database, owner: asyncpg.Connection
) -> None:
    async with sessions(database.owner_url, 2) as (publisher, deleter):
        await publish(deleter, "a")
        transaction = publisher.transaction()
        await transaction.start()
        await publish(publisher, "a")
        await publisher.execute(IMMEDIATE)
        waiting = await blocked(owner, deleter.fetchval("select gapless.delete_channel(1, 'a')"))
        await transaction.commit()
        assert await waiting is True
        await publish(deleter, "a")
    assert [r["seq"] for r in await rows(owner)] == [1]
    assert await owner.fetchval("select last_id from gapless.deleted_channels") == 2


@pytest.mark.parametrize(
    "make",
    [
        "select gapless.set_channel(1, 'a', '{}', false)",
        "select gapless.set_channels(1, array['a'], array['{}'::jsonb])",
    ],
    ids=["a definition", "an import"],
)
async def test_a_channel_that_is_made_again_has_a_larger_id(
    database: Database, owner: asyncpg.Connection, make: str
) -> None:
    async with sessions(database.owner_url, 2) as (deleter, maker):
        await publish(deleter, "a")
        transaction = deleter.transaction()
        await transaction.start()
        await deleter.execute("select gapless.delete_channel(1, 'a')")
        waiting = await blocked(owner, maker.execute(make))
        await deleter.execute("select gapless.set_channel(1, 'a', '{}', false)")
        between = await deleter.fetchval("select id from gapless.channels")
        await deleter.execute("select gapless.delete_channel(1, 'a')")
        await transaction.commit()
        await waiting
    assert await owner.fetchval("select id from gapless.channels") > between


async def test_nothing_breaks_in_a_crowd(database: Database, owner: asyncpg.Connection) -> None:
    """Batches over the same few channels in every order, by service and SQL, while channels come and go."""
    names = ["a", "b", "c", "d"]

    async def by_service(number: int) -> None:
        async with appenders(database, 1) as (appender,):
            for turn in range(25):
                picked = [names[(number + turn * step) % 4] for step in (3, 1, 2)]
                await appender.append([Append("default", tuple(NewMessage(n, b"1") for n in picked))])

    async def by_sql(number: int) -> None:
        async with sessions(database.owner_url, 1) as (session,):
            for turn in range(25):
                async with session.transaction():
                    for step in (1, 3):
                        await publish(session, names[(number + turn * step) % 4])

    async def delete() -> None:
        async with sessions(database.owner_url, 1) as (session,):
            for turn in range(30):
                await session.fetchval("select gapless.delete_channel(1, $1)", names[turn % 4])

    await asyncio.gather(*(by_service(n) for n in range(4)), *(by_sql(n) for n in range(3)), delete())
    await check_log(owner)


async def test_an_idle_transaction_elsewhere_holds_nothing_back(
    database: Database, owner: asyncpg.Connection
) -> None:
    async with sessions(database.owner_url, 1) as (idle,), appenders(database, 1) as (appender,):
        await owner.execute("create table public.other (n integer)")
        transaction = idle.transaction()
        await transaction.start()
        await idle.execute("insert into public.other values (1)")
        last = stored((await appender.append([one("a")]))[0]).positions[-1].id
        watermark = Watermark()
        async with reader(database) as read:

            async def settled() -> bool:
                return watermark.observe(await read.tick()) == last

            await eventually(settled)
        await transaction.rollback()


async def test_a_publisher_holds_the_watermark_until_it_commits(
    database: Database, owner: asyncpg.Connection
) -> None:
    async with sessions(database.owner_url, 1) as (slow,), reader(database) as read:
        transaction = slow.transaction()
        await transaction.start()
        await publish(slow, "a")
        assert not (await read.tick()).holders, "no id is taken yet"
        await slow.execute(IMMEDIATE)
        held = await read.tick()
        assert (held.last_id, len(held.holders)) == (1, 1)
        await transaction.commit()
        assert not (await read.tick()).holders
