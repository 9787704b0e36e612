"""A lease that is given back while others decide: exactly one of them wins."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import asyncpg
import pytest

from tests.conftest import Database
from tests.race.laws import ledger, nothing_left
from tests.race.queues import (
    ACK,
    ALL,
    CLAIM,
    GIVE_BACK,
    NACK,
    REAP,
    Queues,
    attempts,
    bodies,
    columns,
    outcomes,
    receipts,
    step,
)
from tests.race.support import blocked, sessions
from tests.race.test_settlement import one_out

TRIES = 100
PURGE = "select gapless.purge_subscription(1, 'q', 1000, $1)"


@pytest.mark.parametrize("other", ["ack", "nack", "give_back"])
@pytest.mark.parametrize("commits", [True, False])
async def test_a_release_and_another_settlement(
    database: Database, queues: Queues, owner: asyncpg.Connection, other: str, commits: bool
) -> None:
    """The release comes second."""
    subscription, delivery = await one_out(queues)
    subscriptions, messages, leases = columns(subscription, delivery)
    async with sessions(database.service_url, 1) as (session,):
        if other == "ack":
            first = await step(session, ACK, subscriptions, messages, leases)
        elif other == "nack":
            first = await step(session, NACK, subscription.id, messages, leases, False)
        else:
            first = await step(session, GIVE_BACK, subscription.id, messages, leases)
        second = await blocked(owner, queues.give_back(subscription, delivery))
        await first.end(commits=commits)
        lost = "unknown" if other == "ack" else "lease_expired"
        assert await second == [lost if commits else "released"]
    row = await owner.fetchrow("select attempts, strikes from gapless.deliveries where subscription_id > 0")
    if commits and other == "ack":
        await nothing_left(owner)
    else:
        assert row is not None
        assert tuple(row) == ((1, 1) if commits and other == "nack" else (0, 0))
    assert (await ledger(owner, subscription))["rows"] == (0 if commits and other == "ack" else 1)


@pytest.mark.parametrize("other", ["ack", "nack"])
async def test_another_settlement_after_a_release(
    database: Database, queues: Queues, owner: asyncpg.Connection, other: str
) -> None:
    subscription, delivery = await one_out(queues, max_deliver=1)
    _, messages, leases = columns(subscription, delivery)
    async with sessions(database.service_url, 1) as (session,):
        first = await step(session, GIVE_BACK, subscription.id, messages, leases)
        settle = queues.ack if other == "ack" else queues.nack
        second = await blocked(owner, settle(subscription, delivery))
        await first.end()
        assert await second == ["lease_expired"]
    assert attempts(await queues.take(subscription)) == [1]
    assert not await queues.letters()


async def test_many_releases_at_once(queues: Queues, owner: asyncpg.Connection) -> None:
    subscription, delivery = await one_out(queues)
    answers = await asyncio.gather(*(queues.give_back(subscription, delivery) for _ in range(8)))
    assert Counter(answer for (answer,) in answers) == {"released": 1, "lease_expired": 7}
    assert (await queues.stats("q")).in_flight == 0
    assert attempts(await queues.take(subscription)) == [1]


async def test_the_deadline_passes_while_a_release_waits(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    """A release counts when it is decided, not when it was sent."""
    subscription, delivery = await one_out(queues)
    async with sessions(database.service_url, 1) as (session,):
        first = await step(session, "select gapless.extend($1, '{}', '{}', null)", subscription.id)
        waiting = await blocked(owner, queues.give_back(subscription, delivery))
        await queues.passes_now(delivery)
        await first.end()
        assert await waiting == ["lease_expired"]
    await queues.end_in(delivery, 0)
    assert attempts(await queues.take(subscription)) == [2]


@pytest.mark.parametrize("statement", [CLAIM, REAP])
async def test_a_release_after_what_time_decided(
    database: Database, queues: Queues, owner: asyncpg.Connection, statement: str
) -> None:
    subscription, delivery = await one_out(queues, max_deliver=1)
    await queues.end_in(delivery, 0)
    async with sessions(database.service_url, 1) as (session,):
        more = (1,) if statement == CLAIM else ()
        first = await step(session, statement, subscription.id, ALL, *more)
        waiting = await blocked(owner, queues.give_back(subscription, delivery))
        await first.end()
        assert await waiting == ["unknown"]
    assert len(await queues.letters()) == 1


async def test_exactly_one_of_release_and_deadline(queues: Queues, owner: asyncpg.Connection) -> None:
    """Of three leases one lasts, one has ended, and one ends in these milliseconds."""
    subscription = await queues.subscribe("q", max_deliver=1, ordering="none")
    chance = random.Random(2)
    for number in range(TRIES):
        await queues.publish("q", number)
        (delivery,) = await queues.take(subscription)
        lasts, has_ended = number % 3 == 0, number % 3 == 1
        if not lasts:
            await queues.end_in(delivery, 0 if has_ended else chance.randrange(3000))
        answers, _ = await asyncio.gather(
            queues.give_back(subscription, delivery), queues.deliveries.reap(subscription.id, ALL, 10)
        )
        assert (answers == ["released"]) is lasts or not (lasts or has_ended)
        if answers == ["released"]:
            (again,) = await queues.take(subscription)
            assert (again.attempt, again.message.id) == (1, delivery.message.id)
            assert await queues.ack(subscription, again) == ["acked"]
        else:
            while not await queues.letters(subscription="q"):
                await queues.deliveries.reap(subscription.id, ALL, 10)
            (letter,) = await queues.letters(subscription="q")
            assert letter.attempts == 1
            await queues.dead_letters.delete("default", letter.id)
    await nothing_left(owner)


async def test_a_purge_takes_what_was_released_before_it(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    subscription, delivery = await one_out(queues)
    _, messages, leases = columns(subscription, delivery)
    async with sessions(database.service_url, 1) as (session,):
        first = await step(session, GIVE_BACK, subscription.id, messages, leases)
        purging = await blocked(owner, queues.subscriptions.purge("default", "q", await queues.settled()))
        await first.end()
        assert await purging == 1
    assert await queues.give_back(subscription, delivery) == ["unknown"]
    await nothing_left(owner)


async def test_what_waits_behind_it_goes_on_waiting(queues: Queues) -> None:
    subscription = await queues.subscribe("q")
    await queues.publish("q", 1, 2, 3, key="k")
    for _ in range(3):
        (first,) = await queues.take(subscription)
        assert (bodies([first]), first.attempt) == (["1"], 1)
        assert await queues.give_back(subscription, first) == ["released"]
    taken = await queues.take_all(subscription)
    assert (bodies(taken), attempts(taken)) == (["1", "2", "3"], [1, 1, 1])


async def test_a_lease_counts_once_however_often_it_is_named(queues: Queues) -> None:
    subscription, delivery = await one_out(queues, max_in_flight=1)
    given = receipts(subscription, delivery)
    assert outcomes(await queues.deliveries.give_back(given * 3, None)) == ["released"] * 3
    assert (await queues.stats("q")).in_flight == 0
    (again,) = await queues.take(subscription)
    assert again.attempt == 1
