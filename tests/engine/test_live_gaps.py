"""A gap comes before what retention left: nothing that it counts as missed comes after it."""

from __future__ import annotations

import asyncio

from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.selection import select
from subscriptions.engine.live.live_subscription import Event, Gap
from subscriptions.engine.live.starts import Earliest, Latest
from tests.engine.stage import NAMESPACE, Reader, Stage, begin, on_stage
from tests.sim.world import Wire

BOTH = select(NAMESPACE, ("a", "b"))


def test_what_a_gap_counts_as_missed_does_not_come_after_it() -> None:
    """The copies of 6 and 7 wait in memory for 5, which is not committed. Retention removes 6, and a reader
    of history is told so. Then 5 is committed."""

    @on_stage
    async def play(stage: Stage) -> None:
        await stage.store("a", 3)
        live = await stage.subscribe(BOTH, Latest())
        stage.hint(*await stage.store("a"))
        slow = await stage.engine.subscribe(BOTH, Earliest(), Wire(), 15.0)
        transaction = await begin(stage, "b")
        stage.hint(*await stage.store("a", 2))
        stage.log.trim((NAMESPACE, "a"), keep=1)
        told: list[Event] = [await slow.next(stage.reader)]
        assert told == [Gap("a", first_seq=6, missed=5)]
        transaction.commit()
        stage.hint(5)
        reader = Reader(stage, slow)
        await asyncio.sleep(1)
        assert live.ids == [4, 5, 6, 7]
        assert reader.ids == [5, 7]
        await stage.store("a")
        await asyncio.sleep(2)
        assert reader.ids == [5, 7, 8]
        assert not any(isinstance(event, Gap) for event in reader.events)


def test_a_gap_is_told_even_if_a_read_for_the_next_one_fails() -> None:
    @on_stage
    async def play(stage: Stage) -> None:
        for channel in "ab":
            await stage.store(channel, 3)
            stage.log.trim((NAMESPACE, channel), keep=1)
        reads = stage.reader.seq_at

        async def fails_at_the_second(channel_id: int, message_id: int) -> int:
            asked.append(channel_id)
            if len(asked) == 2:
                raise GaplessError(Code.UNAVAILABLE, "down")
            return await reads(channel_id, message_id)

        asked: list[int] = []
        stage.reader.seq_at = fails_at_the_second  # type: ignore[method-assign]
        reader = await stage.subscribe(BOTH)
        await asyncio.sleep(5)
        gaps = [event for event in reader.events if isinstance(event, Gap)]
        assert gaps == [Gap("a", first_seq=3, missed=2), Gap("b", first_seq=3, missed=2)]
        assert reader.ids == [3, 6]
        assert len(asked) == 4


def test_a_channel_that_was_made_again_has_gaps_of_its_own() -> None:
    @on_stage
    async def play(stage: Stage) -> None:
        await stage.store("a", 9)
        await stage.store("b")
        stage.log.trim((NAMESPACE, "a"), keep=1)
        reader = await stage.engine.subscribe(BOTH, Earliest(), Wire(), 15.0)
        assert await reader.next(stage.reader) == Gap("a", first_seq=9, missed=8)
        stage.log.delete((NAMESPACE, "a"))
        await stage.store("a", 5)
        stage.log.trim((NAMESPACE, "a"), keep=1)
        again = Reader(stage, reader)
        await asyncio.sleep(5)
        gaps = [event for event in again.events if isinstance(event, Gap)]
        assert gaps == [Gap("a", first_seq=5, missed=4)]
        assert again.ids[-1] == 15
