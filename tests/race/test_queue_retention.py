"""Retention does not wait for subscriptions: what it takes from them is counted, and nothing else is."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import asyncpg
import pytest

from subscriptions.domain.delivery import DeadLetterFilter
from subscriptions.domain.errors import GaplessError
from tests.conftest import Database
from tests.patience import eventually
from tests.race.laws import check_queues, ledger, nothing_left
from tests.race.queues import ALL, CLAIM, Queues, bodies, step
from tests.race.support import blocked, sessions


async def keep(queues: Queues, channel: str, count: int) -> None:
    """Retention's rule, and the floor moved by it."""
    settings = f'{{"max_messages": {count}}}'
    await queues.owner.execute("select gapless.set_channel(1, $1, $2, false)", channel, settings)
    await queues.maintenance.trim_channels(1000)


async def drop_all_but_the_last(queues: Queues) -> int:
    """A new segment, and those before it dropped as far as nothing in them is kept; how many fell."""
    while not await queues.maintenance.roll_segment(0):
        await queues.publish("filler", 0)
    await queues.publish("filler", 0)
    await keep(queues, "filler", 1)
    fallen = 0
    while await queues.maintenance.drop_segment(await queues.settled()) is not None:
        fallen += 1
    return fallen


@pytest.mark.parametrize("rows", ["stay", "purged", "dropped"])
async def test_what_is_lost_is_counted(queues: Queues, rows: str) -> None:
    """Ten acked, ten under way, thirty ahead, of which retention leaves five; then it takes the rows."""
    subscription = await queues.subscribe("q", ordering="none")
    for _ in range(5):
        await queues.publish("q", *range(10))
    await queues.publish("other", 0)
    await queues.ack(subscription, *await queues.take(subscription, 10))
    held = await queues.take(subscription, 10)
    await queues.nack(subscription, *held[5:], delay=1000)
    await keep(queues, "q", 5)
    assert (await queues.stats("q")).removed_by_retention == 25
    if rows != "stay":
        assert await queues.maintenance.roll_segment(0)
        await queues.publish("q", *range(10))
        await keep(queues, "q", 5)
        if rows == "dropped":
            await queues.owner.execute("select gapless.delete_channel(1, 'other')")
            assert await queues.maintenance.drop_segment(await queues.settled()) == 1
        else:
            assert await queues.maintenance.drop_segment(await queues.settled()) is None
            assert await queues.maintenance.purge_rows(1000) == 50
    lost = 25 if rows == "stay" else 35
    stats = await queues.stats("q")
    assert (stats.removed_by_retention, stats.acked, stats.in_flight, stats.lag) == (lost, 10, 5, 10)
    assert await queues.ack(subscription, *held[:5]) == ["acked"] * 5
    await queues.pass_time(1001)
    assert len(await queues.take_all(subscription)) == (10 if rows == "stay" else 5)
    stats = await queues.stats("q")
    assert stats.removed_by_retention + stats.acked == (50 if rows == "stay" else 60)
    assert (stats.lag, stats.dead_lettered) == (0, 0)
    await nothing_left(queues.owner)


async def test_rows_whose_messages_are_gone(queues: Queues, owner: asyncpg.Connection) -> None:
    """Waiting, delayed, due again and leased: all but the leased are passed over and counted."""
    subscription = await queues.subscribe("q", backoff=[])
    await queues.publish("q", 1, 2, key="a")
    await queues.publish("q", 3, 4)
    a, b, c = await queues.take(subscription)
    await queues.nack(subscription, b)
    await keep(queues, "q", 1)
    await queues.publish("q", 5)
    await keep(queues, "q", 1)
    await drop_all_but_the_last(queues)
    await owner.execute("select gapless.delete_channel(1, 'q')")
    await queues.maintenance.purge_rows(1000)
    assert await queues.ack(subscription, a) == ["acked"]
    assert await queues.take(subscription) == []
    await queues.pass_time(31)
    assert await queues.take(subscription) == []
    assert await queues.ack(subscription, c) == ["unknown"]
    stats = await queues.stats("q")
    assert (stats.acked, stats.removed_by_retention, stats.lag, stats.dead_lettered) == (1, 3, 0, 0)
    await nothing_left(owner)


async def test_what_went_before_is_no_loss(queues: Queues) -> None:
    """A subscription begins with nothing lost, wherever it begins, and after a seek with what it had lost."""
    await queues.publish("q", *range(10))
    await keep(queues, "q", 2)
    subscription = await queues.subscribe("q")
    assert (await queues.stats("q")).removed_by_retention == 0
    assert len(await queues.take_all(subscription)) == 2
    assert (await queues.stats("q")).removed_by_retention == 0
    await queues.publish("q", *range(5))
    await keep(queues, "q", 2)
    assert (await queues.stats("q")).removed_by_retention == 3
    for to in ("earliest", "latest", "11", "earliest"):
        await queues.subscriptions.seek("default", "q", to)
        assert (await queues.stats("q")).removed_by_retention == 3
    assert len(await queues.take_all(subscription)) == 2
    assert (await queues.stats("q")).removed_by_retention == 3


async def test_what_expired_first_is_not_counted_again(queues: Queues) -> None:
    """It became a dead letter ahead of the frontier; that retention takes it later is no loss."""
    subscription = await queues.subscribe("q", "a", "b")
    await queues.publish("a", 0)
    await queues.publish("b", 1, 2, ttl=10)
    await queues.publish("b", 3, 4)
    await queues.pass_time(11)
    assert await queues.reap(subscription) == 2
    await keep(queues, "b", 1)
    for _ in range(2):
        stats = await queues.stats("q")
        assert (stats.removed_by_retention, stats.dead_lettered, stats.lag + stats.acked) == (1, 2, 2)
        await queues.take_all(subscription)
    await queues.dead_letters.purge(DeadLetterFilter("default"))
    await nothing_left(queues.owner)


async def test_a_dead_letter_does_not_hold_its_segment(queues: Queues, owner: asyncpg.Connection) -> None:
    subscription = await queues.subscribe("q", ordering="none")
    await queues.publish("q", 1, 2)
    (first, _) = await queues.bury(subscription, 2)
    await queues.dead_letters.replay("default", first)
    await queues.publish("q", 3)
    await keep(queues, "q", 1)
    await drop_all_but_the_last(queues)
    await queues.publish("q", 4)
    await keep(queues, "q", 1)
    assert await drop_all_but_the_last(queues) > 0
    assert await owner.fetchval("select count(*) from gapless.messages where id < 3") == 0
    assert bodies(await queues.take_all(subscription)) == ["1", "4"]
    assert await queues.dead_letters.replay_all(DeadLetterFilter("default")) == (1, 0)
    assert bodies(await queues.take_all(subscription)) == ["2"]
    assert (await queues.stats("q")).removed_by_retention == 1
    await nothing_left(owner)


@pytest.mark.usefixtures("as_it_is")
async def test_a_segment_waits_for_who_decides(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    """Whoever stands in it is taken past it, by one decision after the other."""
    subscription = await queues.subscribe("q")
    await queues.publish("q", 1, 2)
    await keep(queues, "q", 1)
    await queues.maintenance.roll_segment(0)
    await queues.publish("q", 3)
    await keep(queues, "q", 1)
    async with sessions(database.service_url, 1) as (session,):
        first = await step(session, CLAIM, subscription.id, ALL, 0)
        with pytest.raises(GaplessError):
            await queues.maintenance.drop_segment(await queues.settled())
        await first.end()
        dropping = await step(session, "select gapless.drop_segment($1)", await queues.settled())
        second = await blocked(owner, queues.take(subscription))
        await dropping.end()
        assert bodies(await second) == ["3"]
    assert (await queues.stats("q")).removed_by_retention == 2


@pytest.mark.usefixtures("as_it_is")
async def test_retention_under_load(queues: Queues, owner: asyncpg.Connection) -> None:
    """Channels that keep twenty, segments that fall, slow workers: each message is acked, dead or removed."""
    for channel in ("c.0", "c.1", "c.2"):
        await keep(queues, channel, 20)
    patterns = await queues.subscribe("p", "c.*", ordering="none")
    single = await queues.subscribe("s", "c.1", max_deliver=1)
    published = passes = 0

    async def publish() -> None:
        nonlocal published
        for turn in range(90):
            if turn % 30 == 0:  # The house is kept once more, and a segment is full of what must go.
                enough = passes + 2
                await eventually(lambda: passes >= enough)  # noqa: B023
            await queues.publish(f"c.{turn % 3}", *range(10), key=f"{turn % 4}")
            published += 10

    async def keep_house() -> int:
        nonlocal passes
        fallen = 0
        while published < 900:
            with suppress(GaplessError):
                await queues.maintenance.trim_channels(100)
                await queues.maintenance.roll_segment(0)
                fallen += await queues.maintenance.drop_segment(await queues.settled()) is not None
                await queues.maintenance.purge_rows(100)
                passes += 1
        return fallen

    async def work(turn: int) -> None:
        while published < 900:
            for subscription in (patterns, single):
                taken = await queues.take(subscription, 2)
                if turn % 5 == 0:
                    await queues.reject(subscription, *taken[:1])
                await queues.ack(subscription, *taken)
                turn += 1

    _, fallen, *_ = await asyncio.gather(publish(), keep_house(), work(0), work(3))
    assert fallen > 0
    await check_queues(owner)
    for subscription, matching in ((patterns, 900), (single, 300)):
        # Whatever was taken in the very moment of a claim is leased to nobody, until its lease ends.
        await queues.take_all(subscription)
        await queues.pass_time(31)
        await queues.take_all(subscription)
        now = await ledger(owner, subscription)
        assert (now["rows"], now["ahead"]) == (0, 0)
        assert now["acked"] + now["dead_lettered"] + now["removed"] == matching, now
