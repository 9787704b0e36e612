"""Retention waits for a subscription that asks for it, whatever goes on; others are told what it took."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from subscriptions.domain.delivery import Claimed, Hand, Loss, Subscription
from tests.conftest import Database
from tests.race.queues import ACK, ALL, CLAIM, Queues, bodies, columns, step
from tests.race.support import blocked, sessions
from tests.race.test_queue_retention import drop_all_but_the_last, keep

TRIM = "select gapless.trim_channels(1000)"
PROCESS = 4711


async def first_seq(queues: Queues, channel: str = "q") -> int:
    seq: int = await queues.owner.fetchval("select first_seq from gapless.channels where name = $1", channel)
    return seq


async def stream(queues: Queues, subscription: Subscription, limit: int = 10) -> Claimed:
    """A claim for a stream."""
    return await queues.deliveries.claim(
        subscription.id, await queues.settled(), limit, PROCESS, [Hand(1, n + 1) for n in range(limit)]
    )


# --- what retention waits for


@pytest.mark.parametrize("rule", ["max_messages", "max_age"])
@pytest.mark.parametrize("state", ["ahead", "leased", "delayed", "waiting", "settled ahead"])
async def test_it_waits_for_what_is_not_settled(queues: Queues, rule: str, state: str) -> None:
    subscription = await queues.subscribe("q", "q", "other", retain=True)
    await queues.publish("q", *range(1, 11), key="k" if state == "waiting" else None)
    held = {"ahead": 1, "leased": 4, "delayed": 4, "waiting": 2, "settled ahead": 1}[state]
    if state in ("leased", "delayed"):
        taken = await queues.take(subscription, 6)
        await queues.ack(subscription, *taken[:3], *taken[4:])
        if state == "delayed":
            await queues.nack(subscription, taken[3], delay=1000)
    elif state == "waiting":
        (first,) = await queues.take(subscription, 10)
        await queues.ack(subscription, first)
    elif state == "settled ahead":
        await queues.publish("q", 11, ttl=5)
        await queues.pass_time(6)
        assert await queues.reap(subscription) == 1
    settings = '{"max_messages": 1}' if rule == "max_messages" else '{"max_age": 60}'
    await queues.owner.execute("select gapless.set_channel(1, 'q', $1, false)", settings)
    await queues.owner.execute("update gapless.messages set created_at = created_at - interval '1 hour'")
    await queues.maintenance.trim_channels(1000)
    assert await first_seq(queues) == held
    await queues.subscriptions.seek("default", "q", "latest")
    await queues.maintenance.trim_channels(1000)
    last = 11 if state == "settled ahead" else 10
    assert await first_seq(queues) == (last if rule == "max_messages" else last + 1)
    assert (await queues.stats("q")).removed_by_retention == 0


async def test_each_channel_by_itself_and_other_subscriptions_do_not_count(queues: Queues) -> None:
    """One message that hangs in one channel holds up that channel."""
    subscription = await queues.subscribe("q", "a", "b", retain=True)
    await queues.subscribe("other", "c")
    for channel in "abc":
        await queues.publish(channel, *range(5))
    taken = await queues.take(subscription, 20)
    await queues.ack(subscription, *taken[:2], *taken[3:])
    for channel, expected in {"a": 3, "b": 5, "c": 5}.items():
        await keep(queues, channel, 1)
        assert await first_seq(queues, channel) == expected, channel


async def test_what_no_filter_lets_through_is_not_waited_for(
    queues: Queues, owner: asyncpg.Connection
) -> None:
    subscription = await queues.subscribe("q", filter={"types": ["rare"]}, retain=True)
    await queues.publish("q", *range(10))
    await keep(queues, "q", 1)
    assert await first_seq(queues) == 1
    assert subscription.id in await queues.deliveries.due(["default"])
    await queues.reap(subscription)
    await keep(queues, "q", 1)
    assert await first_seq(queues) == 10


async def test_max_backlog_bounds_it(queues: Queues) -> None:
    subscription = await queues.subscribe("q", retain=True, max_backlog=4)
    await queues.publish("q", *range(10))
    assert await queues.reap(subscription) == 6
    await keep(queues, "q", 1)
    assert await first_seq(queues) == 7
    assert len(await queues.letters()) == 6


async def test_no_segment_falls_that_it_still_needs(queues: Queues) -> None:
    subscription = await queues.subscribe("q", "q", retain=True)
    await queues.publish("q", 1, 2)
    await keep(queues, "q", 1)
    await drop_all_but_the_last(queues)
    await queues.maintenance.purge_rows(1000)
    assert bodies(await queues.take_all(subscription)) == ["1", "2"]
    assert (await queues.stats("q")).removed_by_retention == 0
    await queues.publish("q", 3)
    await keep(queues, "q", 1)
    await queues.publish("filler", 0)
    assert await drop_all_but_the_last(queues) + await queues.maintenance.purge_rows(1000) > 0


async def test_a_subscription_without_its_progress_keeps_all(
    queues: Queues, owner: asyncpg.Connection
) -> None:
    subscription = await queues.subscribe("q", retain=True)
    await queues.publish("q", *range(5))
    await queues.take_all(subscription)
    await owner.execute("delete from gapless.progress where subscription_id = $1", subscription.id)
    await keep(queues, "q", 1)
    assert await first_seq(queues) == 1
    await queues.subscriptions.seek("default", "q", "earliest")


# --- beside others


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("deed", ["claim", "ack"])
async def test_a_decision_in_flight_is_not_counted_on(
    database: Database, queues: Queues, deed: str, commits: bool
) -> None:
    """A claim moves the frontier past what it leases; an ack may yet be rolled back."""
    subscription = await queues.subscribe("q", retain=True)
    await queues.publish("q", *range(5))
    taken = await queues.take(subscription, 3) if deed == "ack" else []
    asked = (ACK, *columns(subscription, *taken)) if taken else (CLAIM, subscription.id, ALL, 3)
    async with sessions(database.service_url, 1) as (session,):
        deciding = await step(session, *asked)
        await keep(queues, "q", 1)
        assert await first_seq(queues) == 1
        await deciding.end(commits=commits)
    await keep(queues, "q", 1)
    assert await first_seq(queues) == (4 if deed == "ack" and commits else 1)


Lowering = Callable[[Queues], Awaitable[Any]]
LOWERING: dict[str, tuple[bool, Lowering]] = {
    "seek": (True, lambda q: q.subscriptions.seek("default", "q", "earliest")),
    "retain": (False, lambda q: q.subscriptions.patch("default", "q", None, {"retain": True})),
    "policy": (False, lambda q: q.policy("p", "*", retain=True)),
    "new": (False, lambda q: q.subscribe("new", "q", retain=True)),
    "bind": (True, lambda q: q.subscriptions.bind("default", "other", ("q",), True)),
}


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("how", LOWERING)
async def test_who_makes_it_wait_waits_for_a_round_in_flight(
    database: Database, queues: Queues, owner: asyncpg.Connection, how: str, commits: bool
) -> None:
    """From its answer on nothing unsettled goes, and what went before is no loss of what begins there."""
    retain, lower = LOWERING[how]
    await queues.subscribe("other", "x", retain=True)
    own: dict[str, Any] = {"retain": True} if retain else {}
    subscription = await queues.subscribe("q", **own)
    await queues.publish("q", *range(5))
    if retain:
        await queues.take_all(subscription)
    await owner.execute("""select gapless.set_channel(1, 'q', '{"max_messages": 2}', false)""")
    async with sessions(database.owner_url, 1) as (session,):
        trimming = await step(session, TRIM)
        lowering = await blocked(owner, lower(queues))
        await trimming.end(commits=commits)
        await lowering
    left = await first_seq(queues)
    assert left == (4 if commits else 1)
    await queues.maintenance.trim_channels(1000)
    assert await first_seq(queues) == left


async def test_a_round_gives_way_to_who_makes_it_wait(database: Database, queues: Queues) -> None:
    subscription = await queues.subscribe("q", retain=True)
    await queues.publish("q", *range(5))
    await queues.take_all(subscription)
    async with sessions(database.service_url, 1) as (session,):
        seeking = await step(session, "select gapless.seek_subscription(1, 'q', 'earliest')")
        await keep(queues, "q", 1)
        assert await first_seq(queues) == 1
        await seeking.end()
    await keep(queues, "q", 1)
    assert await first_seq(queues) == 1
    assert len(await queues.take_all(subscription)) == 5


async def test_nothing_is_lost_while_all_go_on(queues: Queues, owner: asyncpg.Connection) -> None:
    subscription = await queues.subscribe("q", "a", "b", retain=True, max_deliver=0)
    for channel in "ab":
        await keep(queues, channel, 1)
    seen: list[str] = []

    async def send() -> None:
        for n in range(60):
            await queues.publish("ab"[n % 2], *range(n * 10, n * 10 + 10))

    async def work() -> None:
        while not sending.done() or (await queues.stats("q")).lag:
            taken = await queues.take(subscription, 7)
            seen.extend(bodies(taken[1:]))
            if len(taken) > 1:
                await queues.nack(subscription, taken[0], delay=0)
                await queues.ack(subscription, *taken[1:])
            elif taken:
                seen.extend(bodies(taken))
                await queues.ack(subscription, *taken)

    async def house() -> None:
        while not sending.done():
            await queues.maintenance.trim_channels(1000)
            await queues.maintenance.purge_rows(100)

    sending = asyncio.ensure_future(send())
    await asyncio.gather(sending, house(), work())
    left = bodies(await queues.take_all(subscription))
    assert sorted(map(int, seen + left)) == list(range(600))
    assert (await queues.stats("q")).removed_by_retention == 0


# --- what is told of what went


async def test_what_went_is_told_before_what_is_left(queues: Queues, owner: asyncpg.Connection) -> None:
    subscription = await queues.subscribe("q", "a", "b", "c")
    for channel in "abc":
        await queues.publish(channel, *range(10))
    await keep(queues, "a", 4)
    await keep(queues, "b", 9)
    claimed = await stream(queues, subscription, 100)
    assert len(claimed.deliveries) == 4 + 9 + 10
    assert {(g.channel, g.first_seq, g.missed) for g in claimed.losses} == {("a", 7, 6), ("b", 2, 1)}
    assert (await queues.stats("q")).removed_by_retention == 7
    await queues.deliveries.reported(subscription.id, claimed.losses)
    assert (await stream(queues, subscription)).losses == ()


@pytest.mark.parametrize("finds", ["claim", "reap", "purge", "segment"])
async def test_whoever_finds_it_somebody_is_told(
    queues: Queues, owner: asyncpg.Connection, finds: str
) -> None:
    subscription = await queues.subscribe("q", "q", "other")
    await queues.publish("q", *range(10))
    await keep(queues, "q", 4)
    if finds == "claim":
        assert len(await queues.take(subscription, 100)) == 4
    elif finds == "reap":
        await queues.owner.execute("select gapless.set_channel(1, 'q', '{}', false)")
        await queues.subscriptions.patch("default", "q", None, {"max_backlog": 1})
        assert await queues.reap(subscription) == 3
    elif finds == "purge":
        assert await queues.subscriptions.purge("default", "q", await queues.settled()) == 4
    else:
        await queues.publish("q", *range(10, 20))
        await drop_all_but_the_last(queues)
        await keep(queues, "q", 4)
        await queues.publish("filler", 0)
        await drop_all_but_the_last(queues)
    lost = (await queues.stats("q")).removed_by_retention
    claimed = await stream(queues, subscription, 100)
    (loss,) = claimed.losses
    assert (loss.channel, loss.missed) == ("q", lost)
    assert loss.first_seq == await first_seq(queues)


async def test_rows_whose_messages_are_gone_are_told_of(queues: Queues, owner: asyncpg.Connection) -> None:
    subscription = await queues.subscribe("q", backoff=[0], ordering="none")
    await queues.publish("q", 1, 2, 3)
    await queues.nack(subscription, *await queues.take(subscription))
    assert await queues.maintenance.roll_segment(0)
    await queues.publish("q", 4, 5)
    await keep(queues, "q", 1)
    assert await queues.maintenance.drop_segment(await queues.settled()) == 1
    claimed = await stream(queues, subscription)
    assert [(g.channel, g.first_seq, g.missed) for g in claimed.losses] == [("q", 5, 4)]
    assert bodies(claimed.deliveries) == ["5"]
    assert (await queues.stats("q")).removed_by_retention == 4


async def test_what_is_lost_after_it_was_told_is_told_by_itself(queues: Queues) -> None:
    subscription = await queues.subscribe("q")

    async def lose(count: int) -> Loss:
        await queues.publish("q", *range(count + 1))
        await keep(queues, "q", 1)
        claimed = await stream(queues, subscription)
        await queues.ack(subscription, *claimed.deliveries)
        (loss,) = claimed.losses
        return loss

    first = await lose(5)
    second = await lose(3)
    assert (first.missed, second.missed, second.first_seq) == (5, 8, 10)
    await queues.deliveries.reported(subscription.id, [first])
    (left,) = (await stream(queues, subscription)).losses
    assert (left.missed, left.since) == (3, first.number + 1)
    await queues.deliveries.reported(subscription.id, [first])
    assert (await stream(queues, subscription)).losses == (left,), "told twice counts once"
    await queues.deliveries.reported(subscription.id, [second])
    assert (await stream(queues, subscription)).losses == ()


async def test_a_deleted_channel_leaves_no_gap(queues: Queues, owner: asyncpg.Connection) -> None:
    subscription = await queues.subscribe("q", ordering="none", backoff=[0])
    await queues.publish("q", *range(5))
    await queues.nack(subscription, *await queues.take(subscription, 2))
    await keep(queues, "q", 2)
    assert (await stream(queues, subscription)).losses
    await owner.execute("select gapless.delete_channel(1, 'q')")
    assert (await stream(queues, subscription)).losses == ()
    await queues.maintenance.purge_rows(1000)
    await stream(queues, subscription)
    assert await owner.fetchval("select count(*) from gapless.gaps") == 0
