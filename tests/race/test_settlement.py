"""One lease ends once: by an ack, a nack, its deadline, its member's leaving, or a transaction."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from subscriptions.domain.delivery import Delivery, Nack, Receipt, Subscription
from tests.conftest import Database
from tests.race.laws import ledger, nothing_left
from tests.race.queues import (
    ACK,
    ALL,
    CLAIM,
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

TRIES = 200


async def one_out(queues: Queues, **settings: Any) -> tuple[Subscription, Delivery]:
    subscription = await queues.subscribe("q", **settings)
    await queues.publish("q", 1)
    (delivery,) = await queues.take(subscription)
    return subscription, delivery


# --- two at once


@pytest.mark.parametrize("commits", [True, False])
async def test_two_acks(database: Database, queues: Queues, owner: asyncpg.Connection, commits: bool) -> None:
    subscription, delivery = await one_out(queues)
    async with sessions(database.service_url, 1) as (session,):
        first = await step(session, ACK, *columns(subscription, delivery))
        second = await blocked(owner, queues.ack(subscription, delivery))
        await first.end(commits=commits)
        assert await second == ["unknown" if commits else "acked"]
    assert (await queues.stats("q")).acked == 1
    await nothing_left(owner)


@pytest.mark.parametrize("acks_first", [True, False])
async def test_an_ack_and_a_nack(
    database: Database, queues: Queues, owner: asyncpg.Connection, acks_first: bool
) -> None:
    subscription, delivery = await one_out(queues)
    subscriptions, messages, leases = columns(subscription, delivery)
    async with sessions(database.service_url, 1) as (session,):
        if acks_first:
            first = await step(session, ACK, subscriptions, messages, leases)
            second = await blocked(owner, queues.nack(subscription, delivery))
        else:
            first = await step(session, NACK, subscription.id, messages, leases, False)
            second = await blocked(owner, queues.ack(subscription, delivery))
        await first.end()
        assert await second == ["unknown" if acks_first else "lease_expired"]
    stats = await queues.stats("q")
    assert (stats.acked, stats.delayed) == ((1, 0) if acks_first else (0, 1))


async def test_two_last_nacks_make_one_dead_letter(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    subscription, delivery = await one_out(queues, max_deliver=1)
    _, messages, leases = columns(subscription, delivery)
    async with sessions(database.service_url, 1) as (session,):
        first = await step(session, NACK, subscription.id, messages, leases, False)
        second = await blocked(
            owner, queues.deliveries.nack(receipts(subscription, delivery), Nack(dead_letter=True))
        )
        await first.end()
        settled, _ = await second
    assert outcomes(settled) == ["unknown"]
    assert settled[0].dead_letter is None
    assert [letter.reason for letter in await queues.letters()] == ["max_deliver"]
    assert (await queues.stats("q")).dead_lettered == 1


async def test_many_nacks_at_once(queues: Queues) -> None:
    subscription, delivery = await one_out(queues, max_deliver=1)
    answers = await asyncio.gather(*(queues.nack(subscription, delivery) for _ in range(8)))
    assert Counter(answer for (answer,) in answers) == {"nacked": 1, "unknown": 7}
    assert len(await queues.letters()) == 1


# --- the deadline


@pytest.mark.parametrize("reaps", [True, False])
async def test_the_deadline_passes_while_an_ack_waits(
    database: Database, queues: Queues, owner: asyncpg.Connection, reaps: bool
) -> None:
    """An ack counts when it is decided, not when it was sent."""
    subscription, delivery = await one_out(queues)
    async with sessions(database.service_url, 1) as (session,):
        first = await step(session, "select gapless.extend($1, '{}', '{}', null)", subscription.id)
        waiting = await blocked(owner, queues.ack(subscription, delivery))
        await queues.passes_now(delivery)
        await first.end()
        assert await waiting == ["lease_expired"]
    await queues.end_in(delivery, 0)
    if reaps:
        assert (await queues.deliveries.reap(subscription.id, ALL, 10))[0] == 1
    (again,) = await queues.take(subscription)
    assert again.attempt == 2
    assert await queues.ack(subscription, delivery) == ["lease_expired"], "handed to another"
    assert await queues.ack(subscription, again) == ["acked"]
    assert await queues.ack(subscription, delivery) == ["unknown"]


@pytest.mark.parametrize("acks_first", [True, False])
async def test_an_ack_and_a_reaper(
    database: Database, queues: Queues, owner: asyncpg.Connection, acks_first: bool
) -> None:
    """Whoever decides first ends the lease; the other finds it ended."""
    subscription, delivery = await one_out(queues, max_deliver=1)
    async with sessions(database.service_url, 1) as (session,):
        if acks_first:
            first = await step(session, ACK, *columns(subscription, delivery))
            assert await queues.deliveries.reap(subscription.id, ALL, 10) == (0, ()), "not waited for"
            await first.end()
            await queues.pass_time(31)
        else:
            await queues.end_in(delivery, 0)
            first = await step(session, REAP, subscription.id, ALL)
            late = await blocked(owner, queues.ack(subscription, delivery))
            await first.end()
            assert await late == ["unknown"]
    assert await queues.reap(subscription) == 0
    stats = await queues.stats("q")
    assert (stats.acked, stats.dead_lettered) == ((1, 0) if acks_first else (0, 1))
    assert len(await queues.letters()) == stats.dead_lettered


async def test_exactly_one_of_ack_and_deadline(queues: Queues, owner: asyncpg.Connection) -> None:
    """Of three leases one lasts, one has ended, and one ends in these milliseconds: there whoever comes first
    wins. Both or neither are never right."""
    subscription = await queues.subscribe("q", max_deliver=1, ordering="none")
    chance = random.Random(1)
    acked = expired = 0
    for number in range(TRIES):
        await queues.publish("q", number)
        (delivery,) = await queues.take(subscription)
        lasts, has_ended = number % 3 == 0, number % 3 == 1
        if not lasts:
            await queues.end_in(delivery, 0 if has_ended else chance.randrange(3000))
        answers, _ = await asyncio.gather(
            queues.ack(subscription, delivery), queues.deliveries.reap(subscription.id, ALL, 10)
        )
        assert (answers == ["acked"]) is lasts or not (lasts or has_ended)
        if answers == ["acked"]:
            acked += 1
        else:
            while not await queues.letters(subscription="q"):
                await queues.deliveries.reap(subscription.id, ALL, 10)
            (letter,) = await queues.letters(subscription="q")
            assert letter.message.id == delivery.message.id
            await queues.dead_letters.delete("default", letter.id)
            expired += 1
        stats = await queues.stats("q")
        assert (stats.acked, stats.dead_lettered, stats.in_flight, stats.lag) == (acked, expired, 0, 0)
    await nothing_left(owner)


async def test_a_deadline_is_of_the_lease_not_of_the_message(queues: Queues) -> None:
    subscription, delivery = await one_out(queues)
    (settled,) = await queues.deliveries.extend(receipts(subscription, delivery), 3600)
    assert settled.deadline_us is not None
    assert settled.deadline_us > delivery.deadline_us + 3000e6
    await queues.pass_time(3000)
    assert await queues.reap(subscription) == 0
    await queues.pass_time(1000)
    assert outcomes(await queues.deliveries.extend(receipts(subscription, delivery), 10)) == ["lease_expired"]
    assert await queues.nack(subscription, delivery) == ["lease_expired"]
    await queues.deliveries.release(receipts(subscription, delivery), delivered=True)
    (again,) = await queues.take(subscription)
    assert (again.attempt, again.message.id) == (2, delivery.message.id)


# --- what a receipt is worth


FORGERIES: list[Callable[[Receipt], Receipt]] = [
    lambda r: r._replace(lease=r.lease + 1),
    lambda r: r._replace(lease=0),
    lambda r: r._replace(lease=-r.lease),
    lambda r: r._replace(message_id=r.message_id + 1),
    lambda r: r._replace(subscription_id=r.subscription_id + 1),
    lambda r: r._replace(subscription_id=2**31 - 1),
    lambda r: r._replace(message_id=2**63 - 1, lease=2**63 - 1),
]


@pytest.mark.parametrize("forge", FORGERIES)
async def test_a_forged_lease_settles_nothing(queues: Queues, forge: Callable[[Receipt], Receipt]) -> None:
    subscription, delivery = await one_out(queues)
    await queues.subscribe("other", "q")
    (receipt,) = receipts(subscription, delivery)
    forged = [forge(receipt)]
    port = queues.deliveries
    attempts_at: list[Callable[[], Awaitable[object]]] = [
        lambda: port.ack(forged),
        lambda: port.nack(forged, Nack(dead_letter=True)),
        lambda: port.extend(forged, 100),
        lambda: port.release(forged, delivered=True),
        lambda: port.give_back(forged, None),
    ]
    for attempt in attempts_at:
        await attempt()
    assert await port.live(forged) == [False]
    assert await port.live([receipt]) == [True]
    stats = await queues.stats("q")
    assert (stats.in_flight, stats.acked, stats.dead_lettered) == (1, 0, 0)
    assert await queues.ack(subscription, delivery) == ["acked"]


async def test_each_item_has_its_own_result(queues: Queues) -> None:
    subscription = await queues.subscribe("q", ordering="none")
    await queues.publish("q", *range(4))
    a, b, c, d = await queues.take(subscription)
    await queues.ack(subscription, b)
    await queues.nack(subscription, c)
    forged = a._replace(lease=a.lease + 1)
    wanted = ["unknown", "unknown", "lease_expired", "acked", "acked"]
    assert await queues.ack(subscription, forged, b, c, d, a) == wanted
    assert (await queues.stats("q")).acked == 3


# --- attempts


async def test_two_attempts_then_one_dead_letter(queues: Queues, owner: asyncpg.Connection) -> None:
    """Whatever ends them: a nack, a deadline, a member that leaves."""
    for number, last in enumerate(("nack", "deadline", "release")):
        subscription = await queues.subscribe(f"q{number}", max_deliver=2, backoff=[])
        await queues.publish(f"q{number}", 1)
        for attempt in (1, 2):
            (delivery,) = await queues.take(subscription)
            assert delivery.attempt == attempt
            if last == "nack":
                await queues.nack(subscription, delivery, reason="no")
            elif last == "deadline":
                await queues.pass_time(31)
            else:
                await queues.deliveries.release(receipts(subscription, delivery), delivered=True)
        assert await queues.take(subscription) == []
        (letter,) = await queues.letters(subscription=f"q{number}")
        assert (letter.reason, letter.attempts) == ("max_deliver", 2)
        assert (await ledger(owner, subscription))["rows"] == 0


async def test_what_was_never_sent_is_no_attempt(queues: Queues) -> None:
    subscription, delivery = await one_out(queues, max_deliver=1)
    for _ in range(3):
        await queues.deliveries.release(receipts(subscription, delivery), delivered=False)
        (delivery,) = await queues.take(subscription)
        assert delivery.attempt == 1


async def test_backoff_by_attempt(queues: Queues) -> None:
    subscription = await queues.subscribe("q", max_deliver=0, backoff=[10, 100])
    await queues.publish("q", 1)
    for wait in (10, 100, 100):
        (delivery,) = await queues.take(subscription)
        await queues.nack(subscription, delivery)
        await queues.pass_time(wait - 1)
        claimed = await queues.claim(subscription)
        assert not claimed.deliveries
        assert claimed.retry_at_us is not None
        await queues.pass_time(1)
    (delivery,) = await queues.take(subscription)
    await queues.nack(subscription, delivery, delay=5)
    await queues.pass_time(5)
    assert attempts(await queues.take(subscription)) == [5]


@pytest.mark.parametrize("first", ["claim", "reap"])
async def test_time_is_decided_once(
    database: Database, queues: Queues, owner: asyncpg.Connection, first: str
) -> None:
    """A reaper passes over what somebody else decides; a claim finds it decided."""
    subscription, _ = await one_out(queues, max_deliver=1)
    await queues.pass_time(31)
    async with sessions(database.service_url, 1) as (session,):
        if first == "claim":
            decided = await step(session, CLAIM, subscription.id, ALL, 1)
            assert await queues.deliveries.reap(subscription.id, ALL, 10) == (0, ())
            await decided.end()
        else:
            decided = await step(session, REAP, subscription.id, ALL)
            waiting = await blocked(owner, queues.take(subscription))
            await decided.end()
            assert await waiting == []
    assert len(await queues.letters()) == 1
    assert bodies(await queues.take(subscription)) == []


async def test_an_old_receipt_settles_nothing_after_a_restore(
    queues: Queues, owner: asyncpg.Connection
) -> None:
    """The database is as it was before that lease: the next one has another number all the same."""
    subscription = await queues.subscribe("q")
    await queues.publish("q", 1)
    kept = await owner.fetch("select * from gapless.progress where subscription_id = $1", subscription.id)
    (lost,) = await queues.take(subscription)
    await owner.execute("delete from gapless.deliveries where subscription_id > 0")
    await owner.execute("delete from gapless.progress")
    await owner.copy_records_to_table("progress", schema_name="gapless", records=[tuple(kept[0])])
    (live,) = await queues.take(subscription)
    assert live.lease > lost.lease
    assert await queues.ack(subscription, lost) == ["lease_expired"]
    assert await queues.ack(subscription, live) == ["acked"]
