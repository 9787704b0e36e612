"""Publish and ack together, while others settle the same. Alone: tests/contract/test_transactions.py."""

from __future__ import annotations

import asyncpg
import pytest

from subscriptions.domain.delivery import Delivery, Subscription
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Append, Appended, NewMessage
from tests.conftest import Database
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
    subscription = await queues.subscribe("q")
    await queues.publish("q", 1)
    await queues.publish("out", 1)
    (delivery,) = await queues.take(subscription)
    async with sessions(database.owner_url, 1) as (session,):
        held = await step(session, "select from gapless.channels where name = 'out' for update")
        waiting = await blocked(owner, transact(queues, output(), subscription, delivery))
        await queues.passes_now(delivery)
        await held.end()
        assert conflict(await waiting) == ["ack[0].receipts[0]"]
    await queues.end_in(delivery, 0)
    assert len([row for row in await rows(owner) if row["channel"] == "out"]) == 1
    await check_log(owner)
