"""Settlements that find their subscription by the receipts alone, or do not find the one they name."""

from __future__ import annotations

import asyncio

import pytest

from subscriptions.domain.delivery import Nack, Receipt
from subscriptions.domain.errors import Code, GaplessError
from tests.engine.test_consumers import NS, Stage, on_stage, receipt


@on_stage
async def test_receipts_alone_find_their_subscriptions(stage: Stage) -> None:
    """One commit acks all; who serves them elsewhere is told; of another namespace they are unknown."""
    for name in ("q", "r"):
        stage.queues.subscribe(name, "q", ordering="none")
    stage.queues.subscribe("q", namespace="other")
    await stage.store(count=4)
    q, r = await stage.pull("q"), await stage.pull("r")
    both = [receipt(q[0]), None, receipt(r[0], 2), Receipt(3, 1, 1), receipt(q[0]), Receipt(99, 1, 1)]
    stage.calls.clear()
    settled = await stage.consumers.ack(NS, None, both)
    assert [s.status for s in settled] == ["acked", "unknown", "acked", "unknown", "acked", "unknown"]
    assert (stage.calls["ack"], stage.calls["by_id"], stage.calls["get"]) == (1, 1, 0)
    assert stage.told[-1][0] == [1, 2]
    stage.calls.clear()
    more = [receipt(q[1]), receipt(r[1], 2), Receipt(3, 1, 1)]
    assert [s.status for s in await stage.consumers.extend(NS, None, more, 60)] == ["extended"] * 2 + [
        "unknown"
    ]
    settled = await stage.consumers.nack(NS, None, more, Nack(dead_letter=True))
    assert [s.status for s in settled] == ["nacked"] * 2 + ["unknown"]
    assert len({s.dead_letter for s in settled}) == 3
    assert (stage.calls["nack"], stage.calls["extend"], stage.calls["by_id"]) == (2, 2, 0)


@on_stage
async def test_what_was_nacked_before_a_failure_is_told(stage: Stage) -> None:
    for name in ("q", "r"):
        stage.queues.subscribe(name, "q")
    await stage.store()
    both = [receipt((await stage.pull("q"))[0]), receipt((await stage.pull("r"))[0], 2)]
    stage.holds["nack, done"] = asyncio.Event()
    nacking = asyncio.create_task(stage.consumers.nack(NS, None, both, Nack(0)))
    await asyncio.sleep(0.1)
    stage.errors["nack"] = GaplessError(Code.UNAVAILABLE, "gone")
    stage.holds.pop("nack, done").set()
    with pytest.raises(GaplessError):
        await nacking
    assert [ids_ for ids_, _ in stage.told] == [[1]]
    del stage.errors["nack"]
    settled = await stage.consumers.nack(NS, None, both, Nack(0))
    assert [s.status for s in settled] == ["lease_expired", "nacked"]


@on_stage
async def test_what_was_deleted_is_not_found_by_those_who_remember_it(stage: Stage) -> None:
    """They heard of nothing. They ask only where no result tells that it was there."""
    stage.queues.subscribe("q", ordering="none")
    await stage.store(count=3)
    first, second, third = await stage.pull(limit=3)
    stage.calls.clear()
    settled = await stage.consumers.ack(NS, "q", [receipt(first), None, receipt(first)])
    assert [item.status for item in settled] == ["acked", "unknown", "acked"]
    assert stage.calls["get"] == 0
    assert [item.status for item in await stage.consumers.ack(NS, "q", [receipt(first)])] == ["unknown"]
    elsewhere = [stage.make() for _ in range(4)]
    for process in elsewhere:
        await process.find(NS, "q")
    stage.queues.delete("q")
    settling = [
        elsewhere[0].ack(NS, "q", [receipt(second)]),
        elsewhere[1].nack(NS, "q", [receipt(second)], Nack()),
        elsewhere[2].extend(NS, "q", [receipt(third)], None),
        elsewhere[3].ack(NS, "q", [None]),
    ]
    for settle in settling:
        with pytest.raises(GaplessError) as error:
            await settle
        assert error.value.code is Code.SUBSCRIPTION_NOT_FOUND
    stage.queues.subscribe("q", start="latest")
    for process in elsewhere:
        settled = await process.ack(NS, "q", [receipt(second)])
        assert [item.status for item in settled] == ["unknown"]
        await process.stop()
