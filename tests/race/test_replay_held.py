"""A replay in a transaction that stays open: only the dead letter is locked until the commit."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from subscriptions.domain.delivery import DeadLetterFilter
from subscriptions.domain.errors import Code, GaplessError
from tests.conftest import Database
from tests.race.laws import check_queues, nothing_left
from tests.race.queues import Queues, attempts, bodies, step
from tests.race.support import blocked, check_log, publish, rows, sessions, until_waiting

REPLAY = "select status from gapless.replay(1, $1)"
SOME = "select replayed - 1 from gapless.replay_some(1, null, null, null, array[$1::bigint], 0, $1, 10)"
DROP = "select gapless.remove_subscription(1, 'q', false, false)"
HOLD = (
    "select from gapless.progress p join gapless.subscriptions s on s.id = p.subscription_id"
    " where s.name = 'q' for update of p"
)
ALL_LETTERS = DeadLetterFilter("default")


@pytest.mark.parametrize("statement", [REPLAY, SOME])
@pytest.mark.parametrize("ordering", ["none", "key"])
@pytest.mark.parametrize("commits", [True, False])
async def test_others_take_and_settle_meanwhile(
    database: Database,
    queues: Queues,
    owner: asyncpg.Connection,
    commits: bool,
    ordering: str,
    statement: str,
) -> None:
    subscription = await queues.subscribe("q", ordering=ordering)
    await queues.publish("q", 1, 2, 3, key="k")
    (letter,) = await queues.bury(subscription)
    async with sessions(database.service_url, 1) as (session,):
        replaying = await step(session, statement, letter)
        assert replaying.rows[0][0] == 0
        (second,) = await queues.take(subscription, 1)
        assert bodies([second]) == ["2"]
        assert await queues.ack(subscription, second) == ["acked"]
        assert [entry.id for entry in await queues.letters()] == [letter]
        await replaying.end(commits=commits)
    taken = await queues.take_all(subscription)
    assert bodies(taken) == (["1", "3"] if commits else ["3"])
    assert set(attempts(taken)) == {1}
    assert [entry.id for entry in await queues.letters()] == ([] if commits else [letter])
    for table in ("replays", "commits"):
        assert await owner.fetchval(f"select count(*) from gapless.{table}") == 0
    if commits:
        await nothing_left(owner)


async def test_in_its_own_transaction_the_dead_letter_is_gone_at_once(
    database: Database, queues: Queues
) -> None:
    subscription = await queues.subscribe("q")
    await queues.publish("q", 1)
    (letter,) = await queues.bury(subscription)
    async with sessions(database.service_url, 1) as (session,), session.transaction():
        assert await session.fetchval(REPLAY, letter) == 0
        assert await session.fetchval(REPLAY, letter) == 1
        assert await session.fetchval(SOME, letter) == -1
        assert await session.fetchval("select gapless.delete_dead_letter(1, $1)", letter) is False
        assert await session.fetchval("select count(*) from gapless.dead_letters") == 0
    assert bodies(await queues.take(subscription)) == ["1"]


async def test_several_in_other_orders(database: Database, queues: Queues, owner: asyncpg.Connection) -> None:
    """Each session replays of both subscriptions, the other way round; both commit at one time."""
    made = [await queues.subscribe(name, ordering="none") for name in ("q", "r")]
    letters = []
    for subscription in made:
        await queues.publish(subscription.name, 1, 2)
        letters.append(await queues.bury(subscription, 2))
    async with sessions(database.service_url, 2) as two, sessions(database.owner_url, 1) as (holding,):
        steps = [await step(session, REPLAY, letters[n][n]) for n, session in enumerate(two)]
        for n, session in enumerate(two):
            assert await session.fetchval(REPLAY, letters[1 - n][n]) == 0
        held = await step(holding, HOLD)
        ending = [asyncio.ensure_future(one.end()) for one in steps]
        await until_waiting(owner, 2)
        # Both wait for the first subscription, and neither has the second.
        assert await queues.take(made[1]) == []
        await held.end()
        await asyncio.gather(*ending)
    for subscription in made:
        assert sorted(bodies(await queues.take_all(subscription))) == ["1", "2"]
    await nothing_left(owner)


async def test_with_messages_published_before(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    """The subscription is locked first, as everywhere: while that waits, nobody waits for the channel."""
    subscription = await queues.subscribe("q")
    await queues.publish("q", 1)
    (letter,) = await queues.bury(subscription)
    async with sessions(database.owner_url, 2) as (session, holding):
        transaction = session.transaction()
        await transaction.start()
        await publish(session, "other", "2")
        assert await session.fetchval(REPLAY, letter) == 0
        held = await step(holding, HOLD)
        ending = await blocked(owner, transaction.commit())
        await queues.publish("other", 1)
        await held.end()
        await ending
    assert [row["data"] for row in await rows(owner, "other")] == ["1", "2"]
    assert bodies(await queues.take(subscription)) == ["1"]
    await check_log(owner)


async def test_a_savepoint_takes_back_the_replays_after_it(database: Database, queues: Queues) -> None:
    subscription = await queues.subscribe("q", ordering="none")
    await queues.publish("q", *range(4))
    letters = await queues.bury(subscription, 4)
    async with sessions(database.service_url, 1) as (session,), session.transaction():
        for letter in letters[:3]:
            inner = session.transaction()
            await inner.start()
            assert await session.fetchval(REPLAY, letter) == 0
            await (inner.commit() if letter == letters[1] else inner.rollback())
        assert await session.fetchval(REPLAY, letters[2]) == 0
    assert sorted(bodies(await queues.take(subscription))) == ["1", "2"]
    assert [entry.id for entry in await queues.letters()] == [letters[0], letters[3]]


async def test_whatever_the_constraints_it_waits_for_the_commit(database: Database, queues: Queues) -> None:
    subscription = await queues.subscribe("q", ordering="none")
    await queues.publish("q", 1, 2, 3)
    letters = await queues.bury(subscription, 2)
    async with sessions(database.service_url, 1) as (session,):
        transaction = session.transaction()
        await transaction.start()
        for letter in letters:
            assert await session.fetchval(REPLAY, letter) == 0
            await session.execute("set constraints all immediate")
        assert bodies(await queues.take(subscription)) == ["3"]
        await transaction.commit()
    assert sorted(bodies(await queues.take(subscription))) == ["1", "2"]


# --- the subscription goes away


async def test_a_subscription_deleted_meanwhile_fails_the_commit(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    subscription = await queues.subscribe("q")
    await queues.publish("q", 1)
    (letter,) = await queues.bury(subscription)
    async with sessions(database.owner_url, 1) as (session,):
        transaction = session.transaction()
        await transaction.start()
        await publish(session, "other", "2")
        assert await session.fetchval(REPLAY, letter) == 0
        await queues.subscriptions.delete("default", "q")
        with pytest.raises(asyncpg.PostgresError, match="subscription q does not exist") as caught:
            await transaction.commit()
        assert caught.value.sqlstate == "GL404"
    assert [entry.id for entry in await queues.letters()] == [letter]
    assert await rows(owner, "other") == []
    await check_queues(owner)


async def test_one_of_the_same_name_made_meanwhile_gets_it(database: Database, queues: Queues) -> None:
    subscription = await queues.subscribe("q")
    await queues.publish("q", 1)
    (letter,) = await queues.bury(subscription)
    async with sessions(database.service_url, 1) as (session,):
        replaying = await step(session, REPLAY, letter)
        await queues.subscriptions.delete("default", "q")
        another = await queues.subscribe("q", start="latest")
        await replaying.end()
    assert bodies(await queues.take(another)) == ["1"]


@pytest.mark.parametrize("made_again", [False, True])
async def test_who_asks_is_told_of_a_deletion_that_came_first(
    database: Database, queues: Queues, owner: asyncpg.Connection, made_again: bool
) -> None:
    """The answer comes after the commit. Replaying everything passes over what the deletion left."""
    subscription = await queues.subscribe("q")
    other = await queues.subscribe("r", "q")
    await queues.publish("q", 1)
    (letter,) = await queues.bury(subscription)
    await queues.bury(other)
    async with sessions(database.owner_url, 1) as (session,):
        dropping = await step(session, DROP)
        one = asyncio.ensure_future(queues.dead_letters.replay("default", letter))
        await until_waiting(owner)
        if made_again:
            await session.execute(
                "select gapless.create_subscription(1, 'q', '{q}', '{q}', null, 'latest', '{}')"
            )
        await dropping.end()
        with pytest.raises(GaplessError) as caught:
            await one
        assert caught.value.code is Code.SUBSCRIPTION_NOT_FOUND
        assert len(await queues.letters()) == 2
        if not made_again:
            await queues.subscribe("q")
        dropping = await step(session, DROP)
        everything = await blocked(owner, queues.dead_letters.replay_all(ALL_LETTERS))
        await dropping.end()
        assert await everything == (1, 1)
    assert bodies(await queues.take(other)) == ["1"]
    assert [entry.id for entry in await queues.letters()] == [letter]
