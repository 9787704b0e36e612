"""The tables of what is under way are rewritten while all goes on."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import asyncpg
import pytest

from subscriptions.domain.errors import GaplessError
from tests.conftest import Database
from tests.patience import eventually, in_time
from tests.race.laws import check_queues, nothing_left
from tests.race.queues import ACK, Queues, bodies, columns, step
from tests.race.support import blocked, sessions, until_waiting, waiting
from tests.race.test_subscription_states import SETTLING, Settling, two_out

ALWAYS = -(10**9)
"""Whatever the tables hold, they are rewritten."""


async def test_compacting_while_all_goes_on(queues: Queues, owner: asyncpg.Connection) -> None:
    """Rows are copied and truncated under whoever claims, acks and gives back; none is lost or doubled."""
    subscription = await queues.subscribe("q", backoff=[], max_deliver=0)
    ids = [i for n in range(10) for i in await queues.publish("q", *range(15), key=f"k{n}")]
    done: list[int] = []
    rounds = 0

    async def work(turn: int) -> None:
        while len(done) < len(ids):
            for delivery in await queues.take(subscription, 5):
                turn += 1
                # It goes on until the tables were rewritten twice meanwhile.
                if turn % 4 and (rounds > 1 or len(done) < len(ids) - 20):
                    assert await queues.ack(subscription, delivery) == ["acked"]
                    done.append(delivery.message.id)
                else:
                    await queues.nack(subscription, delivery)

    async def compact() -> None:
        nonlocal rounds
        while len(done) < len(ids):
            before = len(done)
            # Who gets no lock in time leaves it to the next round.
            with suppress(GaplessError):
                await queues.maintenance.compact(ALWAYS)
                rounds += 1
            await check_queues(owner)
            await eventually(lambda: rounds < 2 or len(done) > before or len(done) == len(ids))  # noqa: B023

    await in_time(asyncio.gather(compact(), *(work(number) for number in range(4))))
    assert sorted(done) == ids
    await nothing_left(owner)


@pytest.mark.parametrize("settle", SETTLING)
async def test_compacting_stands_in_no_circle(
    database: Database, queues: Queues, owner: asyncpg.Connection, settle: Settling
) -> None:
    """It waits for who is deciding; who comes meanwhile waits for it, and holds nothing that it needs."""
    subscription, (one, _) = await two_out(queues)
    other = await queues.subscribe("other", "q")
    (held, *_) = await queues.take(other)
    async with sessions(database.service_url, 1) as (session,):
        first = await step(session, ACK, *columns(subscription, one))
        compacting = await blocked(owner, queues.maintenance.compact(ALWAYS))
        settling = asyncio.create_task(settle(queues, other, held))
        await until_waiting(owner, 2)
        await first.end()
        assert isinstance(await compacting, int)
        assert await settling != ["lease_expired"]


async def since_long(owner: asyncpg.Connection) -> None:
    """Whatever keeps a snapshot now counts as having had it for long."""
    source = await owner.fetchval("select pg_get_functiondef('gapless_internal.dumps_may_begin'::regproc)")
    await owner.execute(source.replace("10 minutes", "0 minutes"))


async def test_compacting_gives_space_back_under_an_old_snapshot(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    """Vacuum cannot take what a transaction that stays open could still see."""
    subscription, _ = await two_out(queues)
    async with sessions(database.owner_url, 1) as (idle,):
        await idle.execute("begin isolation level repeatable read; select count(*) from gapless.channels")
        await since_long(owner)
        await owner.execute("delete from gapless.deliveries where subscription_id < 0")
        await owner.execute("vacuum gapless.deliveries")
        before = await owner.fetchval("select pg_total_relation_size('gapless.deliveries')")
        freed = await queues.maintenance.compact(65_536)
        after = await owner.fetchval("select pg_total_relation_size('gapless.deliveries')")
        assert (freed, freed > before / 2) == (before - after, True)
        assert await queues.maintenance.compact(65_536) == 0
    assert bodies(await queues.take(subscription)) == ["3"]
    assert (await queues.stats("q")).in_flight == 3


async def test_a_dump_finds_the_tables_full(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    """To a snapshot of before, a table that was rewritten is empty: a backup must not be made of that. What
    the dump calls itself says nothing."""
    await two_out(queues)
    async with (
        sessions(database.owner_url, 1) as (dump,),
        dump.transaction(isolation="repeatable_read", readonly=True),
    ):
        await dump.fetchval("select count(*) from gapless.migrations")
        assert await queues.maintenance.compact(ALWAYS) == 0
        assert await dump.fetchval("select count(*) from gapless.progress") == 1
    before = await owner.fetchval("select pg_relation_filenode('gapless.progress')")
    await queues.maintenance.compact(ALWAYS)
    assert await owner.fetchval("select pg_relation_filenode('gapless.progress')") != before


async def test_a_dump_that_begins_while_tables_are_rewritten_finds_them_as_they_were(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    await two_out(queues)
    before = await owner.fetchval("select pg_relation_filenode('gapless.progress')")
    async with (
        sessions(database.owner_url, 2) as (reading, dump),
        dump.transaction(isolation="repeatable_read", readonly=True),
    ):
        transaction = reading.transaction()
        await transaction.start()
        await reading.execute("lock table gapless.deliveries in access share mode")
        compacting: asyncio.Future[int] | None = None

        async def is_under_way() -> bool:
            nonlocal compacting
            if compacting is None or compacting.done():  # it may take a slow look of this test for a dump
                compacting = asyncio.ensure_future(owner.fetchval("select gapless.compact($1)", ALWAYS))
            return await waiting(queues.owner) > 0

        await eventually(is_under_way)
        assert compacting is not None
        await dump.fetchval("select count(*) from gapless.migrations")
        await transaction.rollback()
        with pytest.raises(asyncpg.LockNotAvailableError, match="a dump may have begun"):
            await compacting
        assert await dump.fetchval("select count(*) from gapless.progress") == 1
    assert await owner.fetchval("select pg_relation_filenode('gapless.progress')") == before


async def test_a_subscription_without_progress_is_an_error(queues: Queues, owner: asyncpg.Connection) -> None:
    """Restored from a dump that is not whole. It says so, and a seek says where it goes on."""
    subscription, _ = await two_out(queues)
    await owner.execute(
        "delete from gapless.progress; delete from gapless.deliveries where subscription_id > 0"
    )
    for ask in (queues.take, queues.reap):
        with pytest.raises(GaplessError, match="has no progress"):
            await ask(subscription)
    with pytest.raises(GaplessError, match="has no progress"):
        await queues.stats("q")
    await queues.subscriptions.seek("default", "q", "earliest")
    assert bodies(await queues.take_all(subscription)) == ["1", "2", "3"]
    await nothing_left(owner)
