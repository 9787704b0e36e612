"""What a dead letter comes back to while others decide; what it finds: tests/contract/test_replay.py."""

from __future__ import annotations

import asyncio

import asyncpg

from subscriptions.domain.errors import Code
from tests.conftest import Database
from tests.race.laws import check_queues, ledger, nothing_left
from tests.race.queues import ALL, CLAIM, Queues, step
from tests.race.support import blocked, sessions
from tests.race.test_replay import ALL_LETTERS, REPLAY, one_dead, outcome


async def test_its_subscription_is_made_anew_while_a_replay_waits(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    """The new one is not locked, so nothing is decided about it: the entry stays."""
    _, letter = await one_dead(queues)
    async with sessions(database.service_url, 1) as (session,):
        dropping = await step(session, "select gapless.remove_subscription(1, 'q', false, false)")
        made = "select gapless.create_subscription(1, 'q', '{q}', '{q}', null, 'latest', '{}')"
        await session.execute(made)
        waiting = await blocked(owner, outcome(queues.dead_letters.replay("default", letter)))
        await dropping.end()
        assert (await waiting)[0] is Code.SUBSCRIPTION_NOT_FOUND
    assert len(await queues.letters()) == 1
    assert await queues.dead_letters.replay("default", letter) == ("q", 1)


async def test_a_replay_and_a_claim(database: Database, queues: Queues, owner: asyncpg.Connection) -> None:
    subscription, letter = await one_dead(queues)
    async with sessions(database.service_url, 2) as (one, two):
        replaying = await step(one, REPLAY, letter)
        assert await queues.take(subscription) == []
        await replaying.end()
        (delivery,) = await queues.take(subscription)
        await queues.reject(subscription, delivery)
        (again,) = await queues.letters()
        claiming = await step(two, CLAIM, subscription.id, ALL, 1)
        late = await blocked(owner, queues.dead_letters.replay("default", again.id))
        await claiming.end()
        assert await late == ("q", 1)
    assert len(await queues.take(subscription)) == 1
    ledger_now = await ledger(owner, subscription)
    assert (ledger_now["rows"], ledger_now["dead_lettered"]) == (1, 2)


async def test_what_is_a_dead_letter_again_is_counted_again(
    queues: Queues, owner: asyncpg.Connection
) -> None:
    subscription = await queues.subscribe("q")
    await queues.publish("q", *range(5))
    await queues.bury(subscription, 5)
    assert await queues.dead_letters.replay_all(ALL_LETTERS) == (5, 0)
    await queues.ack(subscription, (await queues.take(subscription, 3))[1])
    await queues.subscriptions.seek("default", "q", "latest")
    counts = await ledger(owner, subscription)
    assert (counts["dead_lettered"], counts["acked"], counts["rows"]) == (9, 1, 0)


async def test_replays_and_a_seek_at_once(queues: Queues, owner: asyncpg.Connection) -> None:
    """Whoever comes first: a hundred are dead letters or under way, and none is gone."""
    subscription = await queues.subscribe("q")
    await queues.publish("q", *range(100))
    letters = await queues.bury(subscription, 100)
    replays = [queues.dead_letters.replay("default", letter) for letter in letters]
    seeks = [queues.subscriptions.seek("default", "q", "latest") for _ in range(5)]
    await asyncio.gather(*replays[:50], *seeks[:3], *replays[50:], *seeks[3:])
    await check_queues(owner)
    counts = await ledger(owner, subscription)
    assert len(await queues.letters()) + counts["rows"] == 100
    await queues.dead_letters.replay_all(ALL_LETTERS)
    assert len(await queues.take_all(subscription)) == 100
    await nothing_left(owner)
