"""What clients release: who gets it next, and when."""

from __future__ import annotations

import asyncio

import pytest

from subscriptions.domain.delivery import Delivery, Settlement
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.engine.durable.member import REST_S, Member
from tests.engine.test_consumers import NS, Stage, ids, on_stage, receipt

AT_ONCE_S = REST_S / 5


async def release(stage: Stage, *deliveries: Delivery, delay_s: float | None = None) -> list[Settlement]:
    given = [receipt(delivery) for delivery in deliveries]
    return [item.status for item in await stage.consumers.release(NS, "q", given, delay_s)]


async def wait_for(member: Member, timeout_s: float) -> list[Delivery]:
    return await member.next(timeout_s)


@on_stage
async def test_a_pull_that_waits_gets_it_at_once(stage: Stage) -> None:
    stage.queues.subscribe("q")
    await stage.store()
    (one,) = await stage.pull()
    waiting = asyncio.create_task(stage.pull(wait_s=20))
    await asyncio.sleep(5.3)
    began = stage.loop.time()
    assert await release(stage, one) == [Settlement.RELEASED]
    (again,) = await waiting
    assert (ids([again]), again.attempt) == (ids([one]), 1)
    assert stage.loop.time() - began < AT_ONCE_S


@on_stage
async def test_it_comes_when_its_delay_is_over(stage: Stage) -> None:
    stage.queues.subscribe("q")
    await stage.store()
    (one,) = await stage.pull()
    waiting = asyncio.create_task(stage.pull(wait_s=20))
    await asyncio.sleep(0.1)
    began = stage.loop.time()
    await release(stage, one, delay_s=3.3)
    (again,) = await waiting
    assert again.attempt == 1
    assert 3.3 <= stage.loop.time() - began < 3.3 + AT_ONCE_S


@on_stage
async def test_a_stream_that_goes_on_working_gets_it_at_once(stage: Stage) -> None:
    stage.queues.subscribe("q", ordering="none")
    await stage.store(count=3)
    member = await stage.consumers.open(NS, "q", 3)
    one, *_ = await wait_for(member, 5)
    began = stage.loop.time()
    await release(stage, one)
    (again,) = await wait_for(member, 5)
    assert (ids([again]), again.attempt) == (ids([one]), 1)
    assert stage.loop.time() - began < AT_ONCE_S


@on_stage
async def test_a_stream_that_gave_all_back_is_handed_nothing_while_it_leaves(stage: Stage) -> None:
    """Neither what it gave back nor what is there besides: that would be attempts of nobody."""
    stage.queues.subscribe("q", ordering="none")
    await stage.store(count=10)
    member = await stage.consumers.open(NS, "q", 3)
    held = await wait_for(member, 5)
    assert await release(stage, *held) == [Settlement.RELEASED] * 3
    await asyncio.sleep(AT_ONCE_S)
    assert member.outstanding == {}
    stage.consumers.close(member)
    await asyncio.sleep(0.1)
    taken = await stage.pull(limit=10)
    assert [(d.attempt, d.company) for d in taken] == [(1, None)] * 10


@on_stage
async def test_so_is_one_that_was_sent_another_meanwhile(stage: Stage) -> None:
    """The client did not have it yet when it gave back the others."""
    stage.queues.subscribe("q", ordering="none")
    await stage.store(count=10)
    member = await stage.consumers.open(NS, "q", 3)
    held = await wait_for(member, 5)
    await stage.consumers.ack(NS, "q", [receipt(held.pop())])
    (late,) = await wait_for(member, 5)
    await release(stage, *held)
    await asyncio.sleep(AT_ONCE_S)
    assert list(member.outstanding) == ids([late])
    await release(stage, late)
    stage.consumers.close(member)
    await asyncio.sleep(0.1)
    taken = await stage.pull(limit=10)
    assert [(d.attempt, d.company) for d in taken] == [(1, None)] * 9


@on_stage
async def test_what_waits_in_the_service_for_one_that_leaves_is_not_sent(stage: Stage) -> None:
    stage.queues.subscribe("q", ordering="none")
    await stage.store(count=10)
    member = await stage.consumers.open(NS, "q", 4)
    held = await wait_for(member, 5)
    await stage.consumers.ack(NS, "q", [receipt(held.pop())])
    await asyncio.sleep(AT_ONCE_S)
    assert len(member.inbox) == 1
    await release(stage, *held)
    assert not await member.news(AT_ONCE_S)
    assert member.take() == []
    stage.consumers.close(member)
    await asyncio.sleep(0.1)
    assert [d.attempt for d in await stage.pull(limit=10)] == [1] * 9


@on_stage
async def test_another_stream_gets_meanwhile_what_one_gave_back(stage: Stage) -> None:
    stage.queues.subscribe("q", ordering="none")
    await stage.store()
    first = await stage.consumers.open(NS, "q", 1)
    (one,) = await wait_for(first, 5)
    second = await stage.consumers.open(NS, "q", 1)
    await asyncio.sleep(0.1)
    began = stage.loop.time()
    await release(stage, one)
    (again,) = await wait_for(second, 5)
    assert again.attempt == 1
    assert stage.loop.time() - began < AT_ONCE_S


@on_stage
async def test_a_stream_that_stays_gets_it_after_a_rest(stage: Stage) -> None:
    stage.queues.subscribe("q")
    await stage.store()
    member = await stage.consumers.open(NS, "q", 1)
    (one,) = await wait_for(member, 5)
    began = stage.loop.time()
    await release(stage, one)
    (again,) = await wait_for(member, 5)
    assert again.attempt == 1
    assert REST_S <= stage.loop.time() - began < REST_S + AT_ONCE_S


@on_stage
async def test_a_stream_rests_wherever_its_deliveries_were_released(stage: Stage) -> None:
    """A release comes to any process; the one that streams hears of it."""
    stage.queues.subscribe("q", ordering="none")
    await stage.store(count=5)
    other = stage.make()
    member = await other.open(NS, "q", 2)
    held = await wait_for(member, 5)
    given = [receipt(d)._replace(holder=member.holder) for d in held]
    await stage.consumers.release(NS, "q", given, None)
    (subscriptions, told) = stage.told[-1]
    assert (subscriptions, told) == ([1], given)
    other.hear_settled(subscriptions, (), told)
    await asyncio.sleep(AT_ONCE_S)
    assert member.outstanding == {}
    await other.stop()


@on_stage
async def test_a_release_of_a_deleted_subscription_is_refused(stage: Stage) -> None:
    stage.queues.subscribe("q")
    await stage.store()
    (one,) = await stage.pull()
    del stage.queues.queues[1]
    with pytest.raises(GaplessError) as error:
        await release(stage, one)
    assert error.value.code is Code.SUBSCRIPTION_NOT_FOUND
    assert [s.status for s in await stage.consumers.release(NS, None, [receipt(one)], None)] == [
        Settlement.UNKNOWN
    ]
