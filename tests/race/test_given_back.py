"""What a dead letter comes back to: its subscription as it is now, under way again, moved back, or gone."""

from __future__ import annotations

import asyncio
import json

import asyncpg
import pytest

from subscriptions.domain.delivery import Subscription
from subscriptions.domain.errors import Code
from tests.conftest import Database
from tests.race.laws import check_queues, ledger, nothing_left
from tests.race.queues import ALL, CLAIM, Queues, bodies, step
from tests.race.support import blocked, sessions
from tests.race.test_replay import ALL_LETTERS, REPLAY, one_dead, outcome


async def test_its_own_expiry_is_over_and_the_subscription_counts_anew(queues: Queues) -> None:
    subscription = await queues.subscribe("q", message_ttl=100)
    await queues.publish("q", 1, ttl=10)
    await queues.pass_time(11)
    assert await queues.reap(subscription) == 1
    (letter,) = await queues.letters()
    assert (letter.reason, letter.attempts) == ("expired", 0)
    await queues.dead_letters.replay("default", letter.id)
    await queues.pass_time(99)
    assert await queues.reap(subscription) == 0
    await queues.pass_time(2)
    assert await queues.reap(subscription) == 1
    (letter,) = await queues.letters()
    await queues.dead_letters.replay("default", letter.id)
    (delivery,) = await queues.take(subscription)
    assert (delivery.attempt, bodies([delivery])) == (1, ["1"])


async def test_of_a_subscription_that_is_gone(queues: Queues, owner: asyncpg.Connection) -> None:
    """The entry stays; a subscription of the same name gets it."""
    _, letter = await one_dead(queues)
    await queues.subscriptions.delete("default", "q")
    answer = await outcome(queues.dead_letters.replay("default", letter))
    assert answer[0] is Code.SUBSCRIPTION_NOT_FOUND
    assert await queues.dead_letters.replay_all(ALL_LETTERS) == (0, 1)
    assert len(await queues.letters()) == 1
    await check_queues(owner)
    again = await queues.subscribe("q", "elsewhere")
    assert await queues.dead_letters.replay("default", letter) == ("q", 1)
    await queues.publish("elsewhere", 2)
    assert len(await queues.take_all(again)) == 2
    await nothing_left(owner)


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


async def test_a_message_that_is_under_way_again(queues: Queues, owner: asyncpg.Connection) -> None:
    """A subscription that was moved back has it again already: then it begins again there, once, and the
    lease that is out is its first attempt."""
    subscription, letter = await one_dead(queues, max_deliver=2, backoff=[])
    await queues.subscriptions.seek("default", "q", "earliest")
    await queues.nack(subscription, *await queues.take(subscription))
    (delivery,) = await queues.take(subscription)
    assert delivery.attempt == 2
    assert await queues.dead_letters.replay("default", letter) == ("q", 1)
    assert await queues.take(subscription) == []
    await queues.nack(subscription, delivery)
    (delivery,) = await queues.take(subscription)
    assert delivery.attempt == 2
    await queues.ack(subscription, delivery)
    await nothing_left(owner)


async def test_several_deaths_of_one_message(queues: Queues, owner: asyncpg.Connection) -> None:
    subscription, _ = await one_dead(queues)
    for _ in range(2):
        await queues.subscriptions.seek("default", "q", "earliest")
        await queues.bury(subscription)
    assert (await queues.dead_letters.replay_all(ALL_LETTERS)) == (3, 0)
    await check_queues(owner)
    await queues.ack(subscription, *await queues.take(subscription))
    assert await queues.take(subscription) == []
    await nothing_left(owner)


async def test_a_replay_and_a_claim(database: Database, queues: Queues, owner: asyncpg.Connection) -> None:
    subscription, letter = await one_dead(queues)
    async with sessions(database.service_url, 2) as (one, two):
        replaying = await step(one, REPLAY, letter)
        waiting = await blocked(owner, queues.take(subscription))
        await replaying.end()
        (delivery,) = await waiting
        await queues.reject(subscription, delivery)
        (again,) = await queues.letters()
        claiming = await step(two, CLAIM, subscription.id, ALL, 1)
        late = await blocked(owner, queues.dead_letters.replay("default", again.id))
        await claiming.end()
        assert await late == ("q", 1)
    assert len(await queues.take(subscription)) == 1
    ledger_now = await ledger(owner, subscription)
    assert (ledger_now["rows"], ledger_now["dead_lettered"]) == (1, 2)


async def give_back_all(queues: Queues, subscription: Subscription, count: int) -> None:
    """So many messages died and were replayed."""
    await queues.publish("q", *range(count))
    await queues.bury(subscription, count, reason="broken")
    assert await queues.dead_letters.replay_all(ALL_LETTERS) == (count, 0)
    assert await queues.letters() == []


@pytest.mark.parametrize("way", ["seek", "drop"])
async def test_what_was_replayed_is_a_dead_letter_again(
    queues: Queues, owner: asyncpg.Connection, way: str
) -> None:
    """Leased, delayed and due: its only copy is the one that travels."""
    subscription = await queues.subscribe("q", backoff=[100])
    await give_back_all(queues, subscription, 5)
    taken = await queues.take(subscription, 3)
    await queues.nack(subscription, taken[0], reason="not now")
    await queues.ack(subscription, taken[1])
    if way == "seek":
        await queues.subscriptions.seek("default", "q", "latest")
    else:
        await queues.subscriptions.delete("default", "q")
    letters = await queues.letters()
    assert sorted(int(each.message.data or b"") for each in letters) == [0, 2, 3, 4]
    assert {(each.reason, each.attempts, each.last_error) for each in letters} == {("rejected", 1, "broken")}
    assert {json.loads(each.journey)[0]["count"] for each in letters} == {1}
    await check_queues(owner)
    if way == "seek":
        assert await queues.take(subscription) == []
        counts = await ledger(owner, subscription)
        assert (counts["dead_lettered"], counts["acked"], counts["rows"]) == (9, 1, 0)
        assert await queues.dead_letters.replay_all(ALL_LETTERS) == (4, 0)
        assert len(await queues.take_all(subscription)) == 4
        await nothing_left(owner)


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


async def test_what_was_replayed_does_not_go_with_retention(
    queues: Queues, owner: asyncpg.Connection
) -> None:
    """Under way again already when it is replayed, from the log then: from now on it is the copy."""
    subscription, letter = await one_dead(queues)
    await queues.subscriptions.seek("default", "q", "earliest")
    await queues.nack(subscription, *await queues.take(subscription), delay=0)
    await queues.dead_letters.replay("default", letter)
    await queues.owner.execute("select gapless.delete_channel(1, 'q')")
    await queues.maintenance.purge_rows(1000)
    await check_queues(owner)
    (delivery,) = await queues.take(subscription)
    assert (delivery.attempt, bodies([delivery])) == (1, ["1"])
    await queues.ack(subscription, delivery)
    assert (await queues.stats("q")).removed_by_retention == 0
    await nothing_left(owner)
