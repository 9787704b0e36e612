"""Publish and ack together: all of it or nothing, whoever else settles the same meanwhile."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from subscriptions.domain.delivery import Delivery, Subscription
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Append, Appended, NewMessage
from tests.conftest import Database
from tests.race.laws import check_queues
from tests.race.queues import ACK, ALL, REAP, Queues, bodies, columns, receipts, step
from tests.race.support import blocked, check_log, rows, sessions


def output(*channels: str, key: str | None = None) -> Append:
    messages = tuple(NewMessage(channel, b'"out"') for channel in channels or ("out",))
    return Append("default", messages, key, b"body" if key else b"")


async def transact(
    queues: Queues, append: Append | None, subscription: Subscription, *deliveries: Delivery
) -> Appended | GaplessError:
    """The answer, or the error that is one."""
    places = [f"ack[0].receipts[{number}]" for number in range(len(deliveries))]
    try:
        return await queues.transactions.transact(append, receipts(subscription, *deliveries), places)
    except GaplessError as error:
        return error


def conflict(answer: Appended | GaplessError) -> list[str]:
    """Which receipts the answer says are stale."""
    assert isinstance(answer, GaplessError), answer
    assert answer.code is Code.TRANSACTION_CONFLICT
    return [error.field for error in answer.errors]


async def taken(queues: Queues, count: int = 1) -> tuple[Subscription, list[Delivery]]:
    subscription = await queues.subscribe("q", ordering="none")
    await queues.publish("q", *range(count))
    return subscription, await queues.take(subscription, count)


async def test_one_stale_of_many_and_nothing_happens(queues: Queues, owner: asyncpg.Connection) -> None:
    subscription, deliveries = await taken(queues, 100)
    await queues.ack(subscription, deliveries[41])
    await queues.nack(subscription, deliveries[70])
    answer = await transact(queues, output("out", "other"), subscription, *deliveries)
    assert conflict(answer) == ["ack[0].receipts[41]", "ack[0].receipts[70]"]
    assert [row["channel"] for row in await rows(owner) if row["channel"] != "q"] == []
    stats = await queues.stats("q")
    assert (stats.acked, stats.in_flight, stats.delayed) == (1, 98, 1)
    del deliveries[70], deliveries[41]
    answer = await transact(queues, output("out", "other"), subscription, *deliveries)
    assert isinstance(answer, Appended)
    assert [position.seq for position in answer.positions] == [1, 1]
    assert (await queues.stats("q")).acked == 99
    await check_log(owner)


@pytest.mark.parametrize("acks_first", [True, False])
@pytest.mark.parametrize("commits", [True, False])
async def test_an_ack_and_a_transaction(
    database: Database, queues: Queues, owner: asyncpg.Connection, acks_first: bool, commits: bool
) -> None:
    subscription, (delivery,) = await taken(queues)
    async with sessions(database.service_url, 1) as (session,):
        if acks_first:
            first = await step(session, ACK, *columns(subscription, delivery))
            second = await blocked(owner, transact(queues, output(), subscription, delivery))
            await first.end(commits=commits)
            answer = await second
            assert conflict(answer) if commits else not isinstance(answer, GaplessError)
        else:
            nulls = (
                "null, null, null, null, null, '{1}', '{1}', '{message}', null, '{1}', null, null, null, null"
            )
            statement = f"select gapless.transact($1, $2, $3, '{{1}}', '{{out}}', true, {nulls})"
            first = await step(session, statement, *columns(subscription, delivery))
            waiting = await blocked(owner, queues.ack(subscription, delivery))
            await first.end(commits=commits)
            assert await waiting == ["unknown" if commits else "acked"]
    published = [row for row in await rows(owner) if row["channel"] == "out"]
    assert len(published) == (commits != acks_first)
    assert (await queues.stats("q")).acked == 1


async def test_a_crowd_does_each_once(queues: Queues, owner: asyncpg.Connection) -> None:
    """Eight workers that hold the same receipts: each is consumed once, and produces once."""
    subscription, deliveries = await taken(queues, 20)

    async def work(offset: int) -> int:
        done = 0
        for turn in range(20):
            delivery = deliveries[(turn + offset) % 20]
            answer = await transact(queues, output("out", f"out.{offset % 2}"), subscription, delivery)
            done += isinstance(answer, Appended)
        return done

    assert sum(await asyncio.gather(*(work(n) for n in range(8)))) == 20
    assert len([row for row in await rows(owner) if row["channel"] == "out"]) == 20
    await check_queues(owner)
    await check_log(owner)


@pytest.mark.parametrize("reaps_first", [True, False])
async def test_the_deadline_passes_before_a_transaction_decides(
    database: Database, queues: Queues, owner: asyncpg.Connection, reaps_first: bool
) -> None:
    subscription, (delivery,) = await taken(queues)
    await queues.pass_time(31)
    if reaps_first:
        async with sessions(database.service_url, 1) as (session,):
            first = await step(session, REAP, subscription.id, ALL)
            waiting = await blocked(owner, transact(queues, output(), subscription, delivery))
            await first.end()
            answer = await waiting
    else:
        answer = await transact(queues, output(), subscription, delivery)
    assert conflict(answer) == ["ack[0].receipts[0]"]
    assert not [row for row in await rows(owner) if row["channel"] == "out"]
    assert bodies(await queues.take(subscription)) == ["0"]


async def test_the_deadline_passes_while_it_waits_to_publish(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    """It holds the subscription by then, and the ids; nothing of it stays."""
    subscription = await queues.subscribe("q", ack_wait=0.2)
    await queues.publish("q", 1)
    await queues.publish("out", 1)
    (delivery,) = await queues.take(subscription)
    async with sessions(database.owner_url, 1) as (session,):
        held = await step(session, "select from gapless.channels where name = 'out' for update")
        waiting = await blocked(owner, transact(queues, output(), subscription, delivery))
        late = "select clock_timestamp() > at from gapless.deliveries where subscription_id = $1"
        while not await owner.fetchval(late, subscription.id):
            pass
        await held.end()
        assert conflict(await waiting) == ["ack[0].receipts[0]"]
    assert len([row for row in await rows(owner) if row["channel"] == "out"]) == 1
    await check_log(owner)


async def test_acks_of_several_subscriptions_in_any_order(queues: Queues, owner: asyncpg.Connection) -> None:
    """Locks are taken in one order whatever order is asked for."""
    names = ["a", "b", "c"]
    made = [await queues.subscribe(name, "in", ordering="none") for name in names]
    await queues.publish("in", *range(30))
    held = {s.id: await queues.take(s, 30) for s in made}

    async def work(turn: int) -> None:
        order = made[turn % 3 :] + made[: turn % 3]
        chosen = [r for s in (order if turn % 2 else order[::-1]) for r in receipts(s, held[s.id][turn])]
        await queues.transactions.transact(output(f"out{turn % 2}", f"out{1 - turn % 2}"), chosen, ["x"] * 3)

    await asyncio.gather(*(work(turn) for turn in range(30)))
    assert [(await queues.stats(name)).acked for name in names] == [30, 30, 30]
    await check_log(owner)


async def test_a_repeated_transaction_is_answered_as_the_first(queues: Queues) -> None:
    subscription, (delivery,) = await taken(queues)
    first = await transact(queues, output(key="k"), subscription, delivery)
    again = await transact(queues, output(key="k"), subscription, delivery)
    assert isinstance(first, Appended)
    assert isinstance(again, Appended)
    assert again.replayed
    assert again.positions[0].id == first.positions[0].id


async def test_at_once_with_one_key(queues: Queues, owner: asyncpg.Connection) -> None:
    subscription, (delivery,) = await taken(queues)
    many = await asyncio.gather(
        *(transact(queues, output(key="k"), subscription, delivery) for _ in range(8))
    )
    ids = {answer.positions[0].id for answer in many if isinstance(answer, Appended)}
    assert (len(ids), [a for a in many if isinstance(a, GaplessError)]) == (1, [])
    assert len([row for row in await rows(owner) if row["channel"] == "out"]) == 1


async def test_acks_alone(queues: Queues) -> None:
    subscription, deliveries = await taken(queues, 2)
    assert await transact(queues, None, subscription, *deliveries) == Appended(())
    assert conflict(await transact(queues, None, subscription, deliveries[0])) == ["ack[0].receipts[0]"]
    assert (await queues.stats("q")).acked == 2
