"""Who gets what where streams and pulls ask for the same subscription."""

from __future__ import annotations

import asyncio

from subscriptions.engine.durable.reaper import Departures
from subscriptions.engine.gate import Gate
from tests.engine.test_consumers import NS, Stage, ids, on_stage, receipt


@on_stage
async def test_leases_of_streams_name_their_process_and_those_of_pulls_do_not(stage: Stage) -> None:
    """The first end with it, the second do not: whoever pulled may go on and ack elsewhere."""
    stage.queues.subscribe("q", ordering="none")
    member = await stage.consumers.open(NS, "q", 2)
    pulling = asyncio.create_task(stage.pull(limit=3, wait_s=20))
    await asyncio.sleep(0.1)
    await stage.store(count=5)
    pulled, streamed = ids(await pulling), ids(await member.next(5))
    assert (len(pulled), len(streamed)) == (3, 2)
    rows = stage.queues.queues[1].rows
    assert {rows[each].holder for each in streamed} == {stage.consumers.holder}
    assert {rows[each].holder for each in pulled} == {0}


@on_stage
async def test_streams_and_pulls_get_their_turns(stage: Stage) -> None:
    """However much the others take, as fast as they can."""
    stage.queues.subscribe("q", ordering="none")
    await stage.store(count=200)
    member = await stage.consumers.open(NS, "q", 4)
    counts = {"pulled": 0, "streamed": 0}

    async def pull() -> None:
        while deliveries := await stage.pull(limit=4, wait_s=0):
            counts["pulled"] += len(deliveries)
            await stage.consumers.ack(NS, "q", [receipt(d) for d in deliveries])

    async def stream() -> None:
        while deliveries := await member.next(2):
            counts["streamed"] += len(deliveries)
            await stage.consumers.ack(NS, "q", [receipt(d) for d in deliveries])

    await asyncio.gather(pull(), stream())
    assert sum(counts.values()) == 200
    assert min(counts.values()) >= 50, counts


@on_stage
async def test_what_is_in_doubt_goes_to_whom_it_may_at_once(stage: Stage) -> None:
    """Not only at the next look, whosever turn it is: a stream that holds something may not have it."""
    stage.queues.subscribe("q", ordering="none")
    for _ in range(2):
        gone = await stage.consumers.open(NS, "q", 1)
        (doubted,) = await stage.store()
        await gone.next(5)
        member = await stage.consumers.open(NS, "q", 10)
        await stage.store()
        await member.next(5)
        pulling = asyncio.create_task(stage.pull(limit=10, wait_s=20))
        await asyncio.sleep(0.1)
        stage.consumers.close(gone)
        closed = stage.loop.time()
        assert ids(await pulling) == [doubted]
        assert stage.loop.time() - closed < 0.1
        stage.consumers.close(member)
        await asyncio.sleep(0.1)
        await stage.consumers.ack(NS, "q", [receipt(d) for d in await stage.pull()])
        stage.queues.queues[1].rows.clear()


@on_stage
async def test_what_a_process_that_is_gone_streamed_comes_to_others_and_what_was_pulled_does_not(
    stage: Stage,
) -> None:
    stage.queues.subscribe("q", ordering="none")
    gate = Gate()
    gate.open([NS])
    others = stage.make()
    departures = Departures(
        stage.port, gate, touched=lambda _: None, woken=lambda each: others.hear_settled([each], ())
    )
    await stage.store(count=2)
    (pulled,) = await stage.pull(limit=1)
    member = await stage.consumers.open(NS, "q", 1)
    (streamed,) = await member.next(5)
    waiting = asyncio.create_task(others.pull(NS, "q", 2, 20))
    assert await departures.run_once() == 0
    stage.queues.gone.add(stage.consumers.holder)
    assert await departures.run_once() == 1
    assert [(d.message.id, d.attempt) for d in (await waiting)[1]] == [(streamed.message.id, 2)]
    assert stage.queues.queues[1].rows[pulled.message.id].attempts == 1
    await others.stop()
