"""The situations the merge was made for, each by name."""

from __future__ import annotations

import asyncio

import pytest

from subscriptions.domain.merge import MAX_AHEAD
from subscriptions.domain.selection import Selection
from subscriptions.domain.sweeping import SWEEP_S
from subscriptions.engine.live.feed import REORDER_GRACE_S
from subscriptions.engine.live.starts import After, Latest
from tests.engine.stage import ALL, LOBBY, Stage, on_stage

EITHER = pytest.mark.parametrize("selection", [LOBBY, ALL], ids=["channel", "pattern"])


@EITHER
def test_history_3_4_then_hints_5_7_6(selection: Selection) -> None:
    async def play(stage: Stage) -> None:
        await stage.store(count=4)
        reader = await stage.subscribe(selection, After(2))
        await asyncio.sleep(0.1)
        assert reader.ids == [3, 4]
        await stage.store(count=3)
        stage.hint(5)
        stage.hint(7)
        stage.hint(6)
        await asyncio.sleep(REORDER_GRACE_S)
        assert reader.ids == [3, 4, 5, 6, 7]

    on_stage(play)


@EITHER
def test_hints_that_cross_the_history_being_read(selection: Selection) -> None:
    async def play(stage: Stage) -> None:
        await stage.store(count=4)
        joining = asyncio.create_task(stage.subscribe(selection, After(2)))
        await asyncio.sleep(0.001)
        await stage.store(count=3)
        for id_ in (5, 7, 6):
            await asyncio.sleep(0.001)
            stage.hint(id_)
        reader = await joining
        await asyncio.sleep(0.5)
        assert reader.ids == [3, 4, 5, 6, 7]

    on_stage(play)


@EITHER
def test_cursor_100_and_a_stale_hint(selection: Selection) -> None:
    async def play(stage: Stage) -> None:
        await stage.store(count=100)
        reader = await stage.subscribe(selection, After(100))
        stage.hint(95)
        await asyncio.sleep(0.05)
        assert reader.ids == []
        await stage.store()
        stage.hint(*range(96, 102))
        await asyncio.sleep(0.05)
        assert reader.ids == [101]
        stage.hint(*range(101, 95, -1))
        await asyncio.sleep(2)
        assert reader.ids == [101]

    on_stage(play)


@EITHER
def test_cut_off_between_7_and_6(selection: Selection) -> None:
    async def play(stage: Stage) -> None:
        await stage.store(count=5)
        reader = await stage.subscribe(selection, After(4))
        await asyncio.sleep(0.1)
        await stage.store(count=2)
        stage.hint(7)
        await asyncio.sleep(0.001)
        before = reader.ids
        cursor = reader.leave()
        stage.hint(6)
        again = await stage.subscribe(selection, After(cursor))
        await asyncio.sleep(0.1)
        assert before + again.ids == [5, 6, 7]

    on_stage(play)


@EITHER
def test_all_hints_lost(selection: Selection) -> None:
    """Each message is there within a sweep and a half of its commit."""

    async def play(stage: Stage) -> None:
        reader = await stage.subscribe(selection, Latest())
        committed = []
        for _ in range(40):
            await asyncio.sleep(0.13)
            committed += [stage.loop.time()] * len(await stage.store())
        await asyncio.sleep(1.5)
        assert reader.ids == list(range(1, 41))
        late = max(arrived - sent for sent, arrived in zip(committed, reader.arrived, strict=True))
        assert late <= 1.5 * SWEEP_S

    on_stage(play)


@EITHER
def test_2049_hints_wait_for_one(selection: Selection) -> None:
    """One more than is kept: all copies are let go, and the database has them."""

    async def play(stage: Stage) -> None:
        reader = await stage.subscribe(selection, Latest())
        count = MAX_AHEAD + 2
        await stage.store(count=count)
        stage.hint(*range(2, count + 1))
        await asyncio.sleep(1.5)
        assert reader.ids == list(range(1, count + 1))
        stage.hint(1)
        await asyncio.sleep(1.5)
        assert len(reader.ids) == count

    on_stage(play)


@EITHER
def test_pages_that_end_early(selection: Selection) -> None:
    """A page that reached its bytes gives less than its limit: the next one is read at once."""

    async def play(stage: Stage) -> None:
        stage.reader.cut = 3
        reader = await stage.subscribe(selection)
        await asyncio.sleep(0.1)
        stage.hint((await stage.store(count=50))[-1], copies=False)
        await asyncio.sleep(0.3)
        assert reader.ids == list(range(1, 51))

    on_stage(play)


@EITHER
def test_a_rolled_back_publish_leaves_no_hole(selection: Selection) -> None:
    async def play(stage: Stage) -> None:
        await stage.store(count=2)
        reader = await stage.subscribe(selection)
        stage.skip(3)
        (id_,) = await stage.store()
        assert id_ == 6
        stage.hint(id_)
        await asyncio.sleep(0.2)
        assert reader.ids == [1, 2, 6]

    on_stage(play)


@EITHER
def test_hints_without_copies_are_enough(selection: Selection) -> None:
    async def play(stage: Stage) -> None:
        reader = await stage.subscribe(selection)
        await asyncio.sleep(0.1)
        for id_ in await stage.store(count=3):
            stage.hint(id_, copies=False)
        await asyncio.sleep(0.2)
        assert reader.ids == [1, 2, 3]

    on_stage(play)
