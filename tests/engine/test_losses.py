"""Pulls and streams of one process are told what retention took."""

from __future__ import annotations

import asyncio
import itertools

from subscriptions.domain.delivery import Loss
from subscriptions.domain.errors import unavailable
from subscriptions.engine.durable.pull import Pulled
from tests.engine.test_consumers import NS, Stage, ids, on_stage
from tests.patience import cancel


async def lose(stage: Stage, count: int, keep: int) -> None:
    """So many messages more, of which retention leaves so many."""
    await stage.store(count=count)
    stage.log.trim((NS, "q"), keep)


async def pull(stage: Stage, wait_s: float = 0.0) -> Pulled:
    return await stage.consumers.pull(NS, "q", 10, wait_s)


def missed(losses: list[Loss]) -> list[int]:
    return [loss.missed for loss in losses]


def left(stage: Stage) -> dict[int, Loss]:
    """What nobody was told, as the database has it."""
    queue = stage.queues.find(NS, "q")
    assert queue is not None
    return queue.gaps


@on_stage
async def test_one_pull_is_told_once(stage: Stage) -> None:
    stage.queues.subscribe("q", ordering="none")
    await lose(stage, 5, 2)
    pulled = await pull(stage)
    assert (ids(pulled.deliveries), missed(pulled.losses)) == ([4, 5], [3])
    assert (await pull(stage)).losses == [], "another is on its way to hear it"
    assert left(stage)
    stage.consumers.reported(pulled)
    await asyncio.sleep(0.1)
    assert not left(stage)
    assert (await pull(stage)).losses == []


@on_stage
async def test_what_a_pull_could_not_be_told_is_for_the_next(stage: Stage) -> None:
    stage.queues.subscribe("q", ordering="none")
    await lose(stage, 5, 2)
    pulled = await pull(stage)
    stage.consumers.take_back(pulled)
    again = await pull(stage)
    assert missed(pulled.losses) == missed(again.losses) == [3]
    stage.consumers.reported(again)


@on_stage
async def test_what_was_for_one_that_left_while_it_waited_is_for_the_next(stage: Stage) -> None:
    stage.queues.subscribe("q", ordering="none")
    await lose(stage, 5, 2)
    stage.holds["claim, done"] = asyncio.Event()
    waiting = asyncio.create_task(pull(stage, 20))
    await asyncio.sleep(0.1)
    assert left(stage), "the claim has found it"
    waiting.cancel()
    stage.holds.pop("claim, done").set()
    await cancel(waiting)
    await asyncio.sleep(0.5)
    pulled = await pull(stage)
    assert (ids(pulled.deliveries), missed(pulled.losses)) == ([4, 5], [3])


@on_stage
async def test_a_pull_that_waits_is_told_though_nothing_is_left(stage: Stage) -> None:
    stage.queues.subscribe("q", "q", "r", ordering="none")
    await lose(stage, 5, 0)
    begun = stage.loop.time()
    pulled = await pull(stage, 20)
    assert (pulled.deliveries, missed(pulled.losses)) == ([], [5])
    assert stage.loop.time() - begun < 2


@on_stage
async def test_an_error_leaves_it_to_the_next(stage: Stage) -> None:
    stage.queues.subscribe("q", ordering="none")
    await lose(stage, 5, 2)
    stage.errors["reported"] = unavailable("the connection broke")
    stage.consumers.reported(await pull(stage))
    await asyncio.sleep(0.1)
    assert left(stage)
    stage.errors.clear()
    await lose(stage, 3, 1)
    pulled = await pull(stage)
    # Two that were left and two of the three that came since, of which only the latter are news here.
    assert missed(pulled.losses) == [2]
    stage.consumers.reported(pulled)
    await asyncio.sleep(0.1)
    assert not left(stage)


@on_stage
async def test_the_losses_of_another_history_are_news(stage: Stage) -> None:
    """A restored database numbers them from an earlier number on, and they are others."""
    stage.queues.subscribe("q", ordering="none")
    await lose(stage, 5, 2)
    stage.consumers.reported(await pull(stage))
    await asyncio.sleep(0.1)
    stage.queues._gap_numbers = itertools.count(1)
    stage.consumers.history_changed(seen=0)
    await lose(stage, 3, 1)
    assert missed((await pull(stage)).losses) == [2]


@on_stage
async def test_a_stream_is_told_what_a_pull_finds(stage: Stage) -> None:
    stage.queues.subscribe("q", ordering="none", max_in_flight=1)
    await lose(stage, 3, 1)
    member = await stage.consumers.open(NS, "q", 1)
    await asyncio.sleep(0.1)
    assert missed(member.losses) == [2]
    member.reported(list(member.losses))
    await asyncio.sleep(0.1)
    assert not left(stage)
    stage.consumers.close(member)


@on_stage
async def test_what_a_stream_was_told_no_pull_is_told_before_the_database_knows(stage: Stage) -> None:
    stage.queues.subscribe("q", ordering="none")
    await lose(stage, 5, 2)
    stage.holds["reported"] = asyncio.Event()
    member = await stage.consumers.open(NS, "q", 10)
    await asyncio.sleep(0.1)
    assert missed(member.losses) == [3]
    member.reported(list(member.losses))
    stage.consumers.close(member)
    await asyncio.sleep(0.1)
    pulled = await pull(stage)
    assert left(stage), "the database does not know yet that the stream was told"
    assert (ids(pulled.deliveries), missed(pulled.losses)) == ([4, 5], [])
    await lose(stage, 3, 1)
    pulled = await pull(stage)
    assert missed(pulled.losses) == [2], "two of the three that came since"
    stage.holds.pop("reported").set()
    stage.consumers.reported(pulled)
    await asyncio.sleep(0.1)
    assert not left(stage)
