"""A cursor goes from reader to reader: what is committed below it later is still read."""

from __future__ import annotations

import asyncio

import pytest

from subscriptions.domain.selection import Selection, select
from subscriptions.engine.live.live_subscription import Ready
from subscriptions.engine.live.starts import After, Latest
from tests.contract.memory_log import Transaction
from tests.engine.stage import ALL, NAMESPACE, Reader, Stage, begin, on_stage

A, B = select(NAMESPACE, ("a",)), select(NAMESPACE, ("b",))
BOTH = select(NAMESPACE, ("a", "b"))


async def read_ahead(stage: Stage) -> tuple[Transaction, int]:
    """Id 3 is being committed in `b`, and a reader of `a` has read 4; its cursor."""
    await stage.store("a")
    await stage.store("b")
    transaction = await begin(stage, "b")
    await stage.store("a")
    reader = await stage.subscribe(A)
    await asyncio.sleep(1)
    assert reader.ids == [1, 4]
    return transaction, reader.leave()


@pytest.mark.parametrize("selection", [B, BOTH, ALL])
def test_what_is_committed_below_a_carried_cursor_is_read(selection: Selection) -> None:
    @on_stage
    async def play(stage: Stage) -> None:
        transaction, cursor = await read_ahead(stage)
        coming = asyncio.create_task(stage.subscribe(selection, After(cursor)))
        await asyncio.sleep(1)
        transaction.commit()
        reader = await coming
        await stage.store("b")
        await asyncio.sleep(2)
        assert reader.ids == [3, 5]
        assert reader.ready


@pytest.mark.parametrize("selection", [B, BOTH, ALL])
def test_a_reader_that_is_cut_off_at_once_keeps_what_is_not_committed_before_it(selection: Selection) -> None:
    @on_stage
    async def play(stage: Stage) -> None:
        transaction, cursor = await read_ahead(stage)
        coming = asyncio.create_task(stage.subscribe(selection, After(cursor)))
        await asyncio.sleep(1)
        if selection is not B:
            transaction.commit()
        reader = await coming
        await asyncio.sleep(1)
        (ready,) = [event.cursor for event in reader.events if isinstance(event, Ready)]
        reader.leave()
        if selection is B:
            assert ready < 3
            transaction.commit()
        again = await stage.subscribe(selection, After(ready))
        await asyncio.sleep(1)
        assert reader.ids + again.ids == [3]


def test_a_reader_that_comes_back_to_its_channel_begins_where_it_was() -> None:
    @on_stage
    async def play(stage: Stage) -> None:
        transaction, cursor = await read_ahead(stage)
        reader = await stage.subscribe(A, After(cursor))
        await asyncio.sleep(1)
        assert reader.subscription.cursor == cursor
        transaction.commit()
        await stage.store("a")
        await asyncio.sleep(2)
        assert reader.ids == [5]


def test_a_cursor_of_a_publish_that_is_not_settled_lacks_nothing() -> None:
    """Whoever published 4 follows a pattern from there."""

    @on_stage
    async def play(stage: Stage) -> None:
        warm = await stage.subscribe(ALL, Latest())
        transaction = await begin(stage, "b")
        (cursor,) = await stage.store("a")
        coming: asyncio.Task[Reader] = asyncio.create_task(stage.subscribe(ALL, After(cursor)))
        await asyncio.sleep(1)
        transaction.commit()
        reader = await coming
        await stage.store("c")
        await asyncio.sleep(2)
        assert (warm.ids, reader.ids) == ([1, 2, 3], [1, 3])
