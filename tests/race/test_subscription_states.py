"""A subscription is made, moved, paused, deleted and made anew while others take from it and settle."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from subscriptions.domain.delivery import Definition, Delivery, Nack, Subscription
from subscriptions.domain.errors import Code, GaplessError
from tests.conftest import Database
from tests.patience import eventually
from tests.race.laws import check_queues, nothing_left
from tests.race.queues import ACK, ALL, CLAIM, Queues, bodies, columns, outcomes, receipts, step
from tests.race.support import blocked, sessions

CHANGE = "select gapless.change_subscription(1, 'q', null, null, null, $1::jsonb, false)"
DROP = "select gapless.remove_subscription(1, 'q', false, false)"
SEEK = "select gapless.seek_subscription(1, 'q', 'earliest')"


async def two_out(queues: Queues) -> tuple[Subscription, list[Delivery]]:
    subscription = await queues.subscribe("q", ordering="none")
    await queues.publish("q", 1, 2, 3)
    return subscription, await queues.take(subscription, 2)


# --- made


async def test_put_at_once(queues: Queues) -> None:
    """One makes it; the others find it, or that theirs differs."""

    async def put(number: int) -> Any:
        settings = {"max_deliver": 7 + number % 2}
        try:
            return await queues.subscriptions.put("default", Definition("q", ("q",), "latest", settings))
        except GaplessError as error:
            return error.code, "max_deliver" in error.detail

    for _ in range(5):
        answers = await asyncio.gather(*(put(number) for number in range(8)))
        counts = Counter(answer[1] if answer[0] is not Code.CONFLICT else answer for answer in answers)
        assert counts == {True: 1, False: 3, (Code.CONFLICT, True): 4}
        await queues.subscriptions.delete("default", "q")


@pytest.mark.parametrize("commits", [True, False])
async def test_put_waits_for_who_is_putting(
    database: Database, queues: Queues, owner: asyncpg.Connection, commits: bool
) -> None:
    statement = "select * from gapless.create_subscription(1, 'q', '{q}', '{q}', null, 'earliest', '{}')"
    async with sessions(database.service_url, 1) as (session,):
        first = await step(session, statement)
        second = await blocked(
            owner, queues.subscriptions.put("default", Definition("q", ("q",), "earliest"))
        )
        await first.end(commits=commits)
        _, made = await second
        assert made is not commits


# --- deleted


@pytest.mark.parametrize("commits", [True, False])
async def test_delete_before_a_claim(
    database: Database, queues: Queues, owner: asyncpg.Connection, commits: bool
) -> None:
    subscription, _ = await two_out(queues)
    async with sessions(database.service_url, 1) as (session,):
        first = await step(session, DROP)
        second = await blocked(owner, queues.claim(subscription))
        await first.end(commits=commits)
        claimed = await second
    assert (claimed.gone, bodies(list(claimed.deliveries))) == ((True, []) if commits else (False, ["3"]))


async def ack(queues: Queues, subscription: Subscription, delivery: Delivery) -> list[str]:
    return await queues.ack(subscription, delivery)


async def nack(queues: Queues, subscription: Subscription, delivery: Delivery) -> list[str]:
    return await queues.nack(subscription, delivery, dead_letter=True)


async def extend(queues: Queues, subscription: Subscription, delivery: Delivery) -> list[str]:
    return outcomes(await queues.deliveries.extend(receipts(subscription, delivery), None))


async def release(queues: Queues, subscription: Subscription, delivery: Delivery) -> list[str]:
    assert await queues.deliveries.release(receipts(subscription, delivery), delivered=True) == ()
    return ["unknown"]


async def give_back(queues: Queues, subscription: Subscription, delivery: Delivery) -> list[str]:
    return await queues.give_back(subscription, delivery)


Settling = Callable[[Queues, Subscription, Delivery], Coroutine[Any, Any, list[str]]]
SETTLING: list[Settling] = [ack, nack, extend, release, give_back]


@pytest.mark.parametrize("statement", [DROP, SEEK])
@pytest.mark.parametrize("settle", SETTLING)
async def test_what_is_forgotten_is_settled_by_nobody(
    database: Database, queues: Queues, owner: asyncpg.Connection, statement: str, settle: Settling
) -> None:
    """Receipts of before a seek or a delete are unknown, also to a subscription of the same name."""
    subscription, (one, two) = await two_out(queues)
    async with sessions(database.service_url, 1) as (session,):
        first = await step(session, statement)
        second = await blocked(owner, settle(queues, subscription, one))
        await first.end()
        assert await second == ["unknown"]
    if statement == DROP:
        anew = await queues.subscribe("q", ordering="none")
        assert anew.id != subscription.id
        subscription = anew
    taken = await queues.take(subscription)
    assert bodies(taken) == ["1", "2", "3"]
    late = [(await settle(queues, s, two))[0] for s in (subscription, subscription)]
    assert late in (["unknown"] * 2, ["lease_expired"] * 2)
    assert await queues.ack(subscription, *taken) == ["acked"] * 3
    assert not await queues.letters()
    await nothing_left(owner)


async def test_delete_while_acking(database: Database, queues: Queues, owner: asyncpg.Connection) -> None:
    subscription, (one, _) = await two_out(queues)
    async with sessions(database.service_url, 1) as (session,):
        first = await step(session, ACK, *columns(subscription, one))
        second = await blocked(owner, queues.subscriptions.delete("default", "q"))
        await first.end()
        await second
    assert (await queues.claim(subscription)).gone
    await nothing_left(owner)


async def test_one_that_is_led_elsewhere_meanwhile_is_not_paused(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    """Its old address wants no more of it. What is asked before cannot tell: it may change in between."""
    old, new = ({"url": f"http://{name}.example", "secret": "s"} for name in ("old", "new"))
    await queues.subscribe("q", push=old)
    async with sessions(database.service_url, 1) as (session,):
        first = await step(session, CHANGE, json.dumps({"push": new}))
        second = await blocked(owner, queues.subscriptions.pause_pushed("default", "q", old["url"]))
        await first.end()
        assert await second is False
    assert not (await queues.subscriptions.get("default", "q", stats=False)).paused
    assert await queues.subscriptions.pause_pushed("default", "q", new["url"])
    assert (await queues.subscriptions.get("default", "q", stats=False)).paused


async def test_delete_at_once(queues: Queues) -> None:
    await two_out(queues)

    async def delete() -> Code | None:
        try:
            await queues.subscriptions.delete("default", "q")
        except GaplessError as error:
            return error.code
        return None

    answers = await asyncio.gather(*(delete() for _ in range(6)))
    assert Counter(answers) == {None: 1, Code.SUBSCRIPTION_NOT_FOUND: 5}


async def test_its_dead_letters_stay(queues: Queues, owner: asyncpg.Connection) -> None:
    subscription, (one, two) = await two_out(queues)
    await queues.reject(subscription, one)
    (letter,) = await queues.letters()
    await queues.dead_letters.replay("default", letter.id)
    await queues.reject(subscription, two)
    await queues.subscriptions.delete("default", "q")
    assert [letter.message.data for letter in await queues.letters()] == [
        b"2",
        b"1",
    ], "what was replayed is one again"
    await check_queues(owner)


async def test_nobody_finds_half_of_one(queues: Queues) -> None:
    """Made and deleted all the time: whoever claims gets what its number stands for, or that it is gone."""
    stop = False
    codes: set[Code] = set()

    async def churn() -> None:
        nonlocal stop
        for _ in range(40):
            await queues.subscribe("q")
            await queues.subscriptions.delete("default", "q")
        await eventually(lambda: codes)  # Somebody looks while it is gone, if not before.
        stop = True

    async def work() -> None:
        while not stop:
            try:
                found = await queues.subscriptions.get("default", "q", stats=True)
            except GaplessError as error:
                codes.add(error.code)
                continue
            taken = await queues.take(found)
            assert all(status != "lease_expired" for status in await queues.ack(found, *taken))

    await queues.publish("q", *range(5))
    await asyncio.gather(churn(), *(work() for _ in range(3)))
    assert codes == {Code.SUBSCRIPTION_NOT_FOUND}


# --- moved


@pytest.mark.parametrize(("to", "wanted"), [("earliest", "123"), ("latest", ""), ("1", "23"), ("3", "")])
async def test_seek_is_exact_and_forgets(
    queues: Queues, owner: asyncpg.Connection, to: str, wanted: str
) -> None:
    subscription, (one, two) = await two_out(queues)
    await queues.nack(subscription, one)
    moved = await queues.subscriptions.seek("default", "q", to)
    assert moved.stats is not None
    assert (moved.stats.lag, moved.stats.in_flight, moved.stats.delayed) == (len(wanted), 0, 0)
    assert "".join(bodies(await queues.take_all(subscription))) == wanted
    assert await queues.ack(subscription, two) == ["unknown"]
    await nothing_left(owner)


TABLES = ("deliveries", "settled_ahead", "progress", "dead_letters", "kept", "subscriptions")


async def everything(owner: asyncpg.Connection) -> list[Any]:
    """All rows, as they are."""
    return [await owner.fetch(f"select t::text from gapless.{table} t order by 1") for table in TABLES]


@pytest.mark.parametrize("to", ["earliest", "latest", "2", "2001-01-01T00:00:00Z"])
async def test_a_dry_run_of_a_seek_says_what_it_does(
    queues: Queues, owner: asyncpg.Connection, to: str
) -> None:
    """Of two channels, with something in every state, and something replayed."""
    subscription = await queues.subscribe("q", "a", "b", ordering="none", ack_wait=1000)
    for n in range(5):
        await queues.publish("ab"[n % 2], n)
    await queues.bury(subscription)
    await queues.bury(subscription)
    await queues.dead_letters.replay("default", 1)
    one, _ = await queues.take(subscription, 2)
    await queues.nack(subscription, one, delay=1000)
    rows = await everything(owner)
    stood = await queues.stats("q")
    tried, before = await queues.subscriptions.try_seek("default", "q", to)
    assert await everything(owner) == rows
    moved = await queues.subscriptions.seek("default", "q", to)
    assert before is not None
    assert tried.stats is not None
    assert moved.stats is not None
    assert replace(before, oldest_unacked_seconds=None) == replace(stood, oldest_unacked_seconds=None)
    assert (before.in_flight, before.delayed) == (1, 1)
    assert (tried.stats.oldest_unacked_seconds is None) == (moved.stats.oldest_unacked_seconds is None)
    late = tried.stats.oldest_unacked_seconds and moved.stats.oldest_unacked_seconds
    assert replace(tried, stats=replace(tried.stats, oldest_unacked_seconds=late)) == moved
    assert tried.stats.dead_letters == 2


async def test_a_dry_run_refuses_what_a_seek_refuses(queues: Queues, owner: asyncpg.Connection) -> None:
    await two_out(queues)
    with pytest.raises(GaplessError, match="future"):
        await queues.subscriptions.try_seek("default", "q", "4")
    with pytest.raises(GaplessError, match="does not exist"):
        await queues.subscriptions.try_seek("default", "nobody", "earliest")
    await owner.execute("delete from gapless.progress where subscription_id > 0")
    tried, before = await queues.subscriptions.try_seek("default", "q", "earliest")
    assert (tried.stats and tried.stats.lag, before) == (3, None)
    assert await owner.fetchval("select count(*) from gapless.progress where subscription_id > 0") == 0
    await queues.subscriptions.seek("default", "q", "earliest")


async def test_seek_into_the_future(queues: Queues) -> None:
    await two_out(queues)
    with pytest.raises(GaplessError, match="future"):
        await queues.subscriptions.seek("default", "q", "4")
    with pytest.raises(GaplessError, match="does not exist"):
        await queues.subscriptions.seek("default", "nobody", "4")
    assert (await queues.stats("q")).in_flight == 2


async def test_seek_and_a_claim(database: Database, queues: Queues, owner: asyncpg.Connection) -> None:
    subscription, _ = await two_out(queues)
    async with sessions(database.service_url, 1) as (session,):
        first = await step(session, CLAIM, subscription.id, ALL, 10)
        second = await blocked(owner, queues.subscriptions.seek("default", "q", "earliest"))
        await first.end()
        await second
    assert bodies(await queues.take(subscription)) == ["1", "2", "3"]


async def test_after_a_seek_back_what_expired_ahead_expires_again(queues: Queues) -> None:
    """What was settled ahead of the frontier is forgotten too."""
    subscription = await queues.subscribe("q")
    await queues.publish("q", 1)
    await queues.publish("q", 2, ttl=10)
    await queues.pass_time(11)
    assert await queues.reap(subscription) == 1
    await queues.subscriptions.seek("default", "q", "earliest")
    await queues.pass_time(60)
    assert await queues.reap(subscription) == 1
    assert len(await queues.letters()) == 2
    assert bodies(await queues.take_all(subscription)) == ["1"]


# --- paused


async def test_pause_and_a_claim(database: Database, queues: Queues, owner: asyncpg.Connection) -> None:
    """Whatever the claim waited for, it does not hand out once the pause is answered."""
    subscription, held = await two_out(queues)
    async with sessions(database.service_url, 1) as (session,):
        first = await step(session, CLAIM, subscription.id, ALL, 0)
        second = await blocked(owner, queues.claim(subscription))
        await queues.subscriptions.pause("default", "q", True)
        await first.end()
        claimed = await second
    assert (claimed.paused, claimed.deliveries, claimed.more) == (True, (), False)
    assert await queues.ack(subscription, held[0]) == ["acked"]
    settled, _ = await queues.deliveries.nack(receipts(subscription, held[1]), Nack(dead_letter=True))
    assert settled[0].dead_letter is not None
    await queues.subscriptions.pause("default", "q", True)
    assert bodies(await queues.take(subscription)) == []
    await queues.subscriptions.pause("default", "q", False)
    assert bodies(await queues.take(subscription)) == ["3"]


async def test_time_goes_on_while_it_is_paused(queues: Queues) -> None:
    subscription = await queues.subscribe("q", max_deliver=1, ordering="none")
    await queues.publish("q", 1)
    await queues.publish("q", 2, ttl=10)
    assert len(await queues.take(subscription, 1)) == 1
    await queues.subscriptions.pause("default", "q", True)
    await queues.pass_time(31)
    assert await queues.reap(subscription) == 2
    assert sorted(letter.reason for letter in await queues.letters()) == ["expired", "max_deliver"]
