"""Leases of streams end with the process that streams, and with nothing less."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from db import liveness as liveness_module
from db.connect import DatabaseConfig
from db.liveness import Liveness
from subscriptions.domain.delivery import Delivery, Hand, Receipt, Settlement, Subscription
from tests.conftest import Database
from tests.patience import cancel, eventually
from tests.race.laws import check_queues
from tests.race.queues import Queues, bodies
from tests.race.support import sessions

HERE, THERE = 3**39 | 1, 5**25
"""Numbers of processes, of more than 32 bits."""
STREAMS = itertools.count(1)
"""Of streams."""


class Process:
    """Its liveness; `entered` counts how often it was told that it is there."""

    def __init__(self, url: str, holder: int) -> None:
        self.entered = 0
        self.liveness = Liveness(DatabaseConfig(url), holder, self._count)
        self._task = asyncio.create_task(self.liveness.run())

    def _count(self) -> None:
        self.entered += 1

    async def there(self, times: int = 1) -> None:
        await eventually(lambda: self.entered >= times)

    async def end(self) -> None:
        await cancel(self._task)


@asynccontextmanager
async def process(database: Database, holder: int) -> AsyncIterator[Process]:
    made = Process(database.service_url, holder)
    await made.there()
    try:
        yield made
    finally:
        await made.end()


async def take(queues: Queues, subscription: Subscription, holder: int, limit: int = 10) -> list[Delivery]:
    """Lease for a new stream of this process; for a pull if it is 0."""
    settled, member = await queues.settled(), next(STREAMS) if holder else 0
    hands = [Hand(member, place) for place in range(1, limit + 1)]
    return list((await queues.deliveries.claim(subscription.id, settled, limit, holder, hands)).deliveries)


async def departed(queues: Queues) -> list[tuple[int, int]]:
    return await queues.deliveries.departed(["default"])


async def kill_sessions(database: Database) -> None:
    """As the end of a process, or a restart of the database, ends them."""
    async with sessions(database.admin_url, 1) as (admin,):
        await admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = 'gapless liveness' and datname = current_database()"
        )


def receipts(subscription: Subscription, deliveries: list[Delivery]) -> list[Receipt]:
    return [Receipt(subscription.id, d.message.id, d.lease) for d in deliveries]


async def test_what_a_dead_process_streamed_is_due_at_once_and_nothing_else(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    """Not what was pulled through it, nor what a living one streams. A late ack is refused."""
    subscription = await queues.subscribe("q", ordering="none", ack_wait=86_400)
    await queues.publish("q", *range(6))
    async with process(database, THERE):
        async with process(database, HERE):
            theirs = await take(queues, subscription, THERE, 2)
            dead = await take(queues, subscription, HERE, 2)
            pulled = await take(queues, subscription, 0, 2)
            assert not await departed(queues)
        await eventually(lambda: departed(queues))
        assert await departed(queues) == [(HERE, subscription.id)]
        assert await queues.deliveries.release_departed(THERE, subscription.id, 10) == (0, ())
        assert (await queues.deliveries.release_departed(HERE, subscription.id, 10))[0] == 2
        await check_queues(owner)
        again = await take(queues, subscription, THERE, 10)
        assert (bodies(again), [d.attempt for d in again]) == (bodies(dead), [2, 2])
        late = await queues.deliveries.ack(receipts(subscription, dead))
        assert [item.status for item in late] == [Settlement.LEASE_EXPIRED] * 2
        settled = await queues.deliveries.ack(receipts(subscription, theirs + pulled + again))
        assert [item.status for item in settled] == [Settlement.ACKED] * 6
        assert not await departed(queues)
    assert await owner.fetchval("select count(*) from gapless.processes where holder = $1", HERE) == 0


async def test_who_enters_again_in_time_keeps_its_leases(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    """Whether it was seen to be missing or not: a restart of the database ends all sessions at once."""
    subscription = await queues.subscribe("q", ack_wait=86_400)
    await queues.publish("q", 1)
    async with process(database, HERE) as here:
        held = await take(queues, subscription, HERE)
        await kill_sessions(database)
        await departed(queues)
        await here.there(2)
        missing = "select count(*) from gapless.processes where missing_since is not null"
        assert await owner.fetchval(missing) == 0
        assert not await departed(queues)
        assert await queues.deliveries.release_departed(HERE, subscription.id, 10) == (0, ())
        (settled,) = await queues.deliveries.ack(receipts(subscription, held))
        assert settled.status is Settlement.ACKED


async def test_who_comes_back_late_has_lost_its_leases_and_goes_on(
    database: Database, queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process that stood still while its session ended: it is told, and takes part again."""
    subscription = await queues.subscribe("q", ack_wait=86_400)
    await queues.publish("q", 1)
    async with process(database, HERE) as here:
        held = await take(queues, subscription, HERE)
        thaw = asyncio.Event()
        enter = here.liveness._stay

        async def frozen() -> None:
            await thaw.wait()
            await enter()

        monkeypatch.setattr(here.liveness, "_stay", frozen)
        await kill_sessions(database)
        await eventually(lambda: departed(queues))
        await queues.deliveries.release_departed(HERE, subscription.id, 10)
        thaw.set()
        await here.there(2)
        (late,) = await queues.deliveries.ack(receipts(subscription, held))
        assert late.status is Settlement.LEASE_EXPIRED
        again = await take(queues, subscription, HERE)
        assert [d.attempt for d in again] == [2]
        assert not await departed(queues)


async def test_the_last_attempt_of_a_dead_process_is_a_dead_letter(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    subscription = await queues.subscribe("q", ack_wait=86_400, max_deliver=1)
    await queues.publish("q", 1)
    async with process(database, HERE):
        await take(queues, subscription, HERE)
    await eventually(lambda: departed(queues))
    await queues.deliveries.release_departed(HERE, subscription.id, 10)
    (letter,) = await queues.letters()
    assert letter.reason == "max_deliver"
    await check_queues(owner)


async def test_each_stream_of_a_dead_process_is_judged_by_what_it_held(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    """Of each all is given back at once, however few are asked for: a part would pass for the whole."""
    subscription = await queues.subscribe("q", ordering="none", ack_wait=86_400, max_deliver=1)
    await queues.publish("q", *range(7))
    async with process(database, HERE):
        for held in (3, 3, 1):
            assert len(await take(queues, subscription, HERE, held)) == held
    await eventually(lambda: departed(queues))
    ended: list[int] = []
    while left := await departed(queues):
        done, _ = await queues.deliveries.release_departed(*left[0], 2)
        ended.append(done)
        await check_queues(owner)
    assert ended == [3, 3, 1]
    judged = await owner.fetch("select company, strikes from gapless.deliveries where subscription_id > 0")
    assert [tuple(row) for row in judged] == [(3, 0)] * 6
    (letter,) = await queues.letters()
    assert (letter.message.data, letter.reason) == (b"6", "max_deliver")


async def test_of_another_services_namespace_nothing_is_decided(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    subscription = await queues.subscribe("q", ack_wait=86_400)
    await queues.publish("q", 1)
    async with process(database, HERE):
        await take(queues, subscription, HERE)
    await eventually(lambda: departed(queues))
    assert not await owner.fetch("select * from gapless.departed('{}')")
    assert await departed(queues) == [(HERE, subscription.id)]


async def test_a_database_that_is_away_ends_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness_module, "RETRY_S", 0.01)
    nowhere = Process("postgresql://nobody@127.0.0.1:1/nothing", HERE)
    here = Process(database.service_url, HERE)
    await here.there()
    assert not nowhere.entered
    assert not nowhere._task.done()
    for each in (nowhere, here):
        await each.end()


async def test_a_stranger_who_takes_its_locks_neither_keeps_it_out_nor_stands_for_it(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    subscription = await queues.subscribe("q", ack_wait=86_400)
    await queues.publish("q", 1)
    async with sessions(database.owner_url, 2) as (early, late):
        await early.execute(f"select pg_advisory_lock({HERE})")
        async with process(database, HERE):
            await take(queues, subscription, HERE)
            key = await owner.fetchval("select key from gapless.processes")
            await late.execute(f"select pg_advisory_lock_shared({key})")
            assert not await departed(queues)
        await eventually(lambda: departed(queues))
        assert (await queues.deliveries.release_departed(HERE, subscription.id, 10))[0] == 1
