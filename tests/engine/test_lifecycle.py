"""Feeds and readers come and go: nothing stays behind, nothing spins, nobody is forgotten."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.goodbye import Goodbye
from subscriptions.domain.selection import Selection, select
from subscriptions.engine.hints import EphemeralHint
from subscriptions.engine.live.engine import (
    LINGER_S,
    MIN_TAIL_BYTES,
    READ_WITHIN_S,
    START_TIMEOUT_S,
    LiveLimits,
)
from subscriptions.engine.live.feed import EPHEMERAL_BYTES, RETRY_S
from subscriptions.engine.live.live_subscription import Chunk, Ephemeral, Gap, Ready
from subscriptions.engine.live.starts import After, Earliest, Last, Latest, Since, Start
from tests.engine.stage import ALL, LOBBY, NAMESPACE, Stage, on_stage
from tests.sim.world import Wire, encode

EITHER = pytest.mark.parametrize("selection", [LOBBY, ALL], ids=["channel", "pattern"])
PLACE = (NAMESPACE, "lobby")
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


def test_a_channel_made_anew_while_its_feed_catches_up() -> None:
    """The page that was asked of the old channel is answered by the new one, which counts from 1 again."""

    async def play(stage: Stage) -> None:
        await stage.store(count=5)
        reader = await stage.subscribe()
        await asyncio.sleep(0.1)
        old = stage.log.by_id[(await stage.store(count=2))[-1]]
        stage.hint(old[1].id, copies=False)
        stage.log.delete(PLACE)
        await stage.store(count=3)
        await asyncio.sleep(3)
        assert reader.ids == [1, 2, 3, 4, 5, 8, 9, 10]
        stage.hint(*await stage.store())
        await asyncio.sleep(0.1)
        assert reader.ids[-1] == 11

    on_stage(play)


def test_what_is_left_of_a_deleted_channel_is_given_to_nobody() -> None:
    """Retention removed the seventh message, and the channel was deleted before the reader was told of it.
    The eighth would come without a word of the seventh."""

    async def play(stage: Stage) -> None:
        await stage.store(count=6)
        reader = await stage.subscribe(start=Earliest())
        await asyncio.sleep(0.1)
        newest = (await stage.store(count=2))[-1]
        stage.log.trim(PLACE, 1)
        stage.hint(newest)
        reads = stage.reads.get("paged", 0)
        while stage.reads.get("paged", 0) == reads:  # The feed reads what the hint does not bring.
            await asyncio.sleep(0.0005)
        stage.log.delete(PLACE)  # The reader, which is behind what was read, reads the page before it.
        await asyncio.sleep(3)
        assert reader.ids == [1, 2, 3, 4, 5, 6]
        assert not reader.events[1:]
        await stage.store()
        await asyncio.sleep(3)
        assert reader.ids == [1, 2, 3, 4, 5, 6, 9]

    on_stage(play)


def test_a_reader_of_a_channel_that_goes_away_is_ready_all_the_same() -> None:
    async def play(stage: Stage) -> None:
        await stage.store(count=5)
        await stage.subscribe()
        await asyncio.sleep(0.1)
        await stage.store(count=2)
        joining = asyncio.create_task(stage.subscribe(start=Earliest()))
        await asyncio.sleep(0.0035)  # The head is read; what it promises is not.
        stage.log.delete(PLACE)
        reader = await joining
        await asyncio.sleep(3)
        assert reader.ready

    on_stage(play)


def test_a_commit_behind_another_fence_is_not_shown_though_its_number_is_the_same() -> None:
    async def play(stage: Stage) -> None:
        stage.log.crash()
        await asyncio.sleep(2)
        fence = stage.log.fence
        assert stage.engine.committed(fence, 1)
        for other in (fence._replace(epoch="other"), fence._replace(base=fence.base + 1), None):
            assert not stage.engine.committed(other, 1)

    on_stage(play)


def test_a_log_that_cannot_be_read_is_told_after_a_while() -> None:
    async def play(stage: Stage) -> None:
        await asyncio.sleep(60)
        stage.engine.check()
        stage.down = True
        await asyncio.sleep(READ_WITHIN_S - 1.5)
        stage.engine.check()
        await asyncio.sleep(2)
        with pytest.raises(GaplessError, match="the log cannot be read: down"):
            stage.engine.check()
        stage.down = False
        await asyncio.sleep(2)
        stage.engine.check()

    on_stage(play)


@EITHER
@pytest.mark.parametrize("start", [Latest(), Earliest(), After(2), Last(2), Since(LONG_AGO)], ids=repr)
def test_ready_comes_once_after_history(selection: Selection, start: Start) -> None:
    async def play(stage: Stage) -> None:
        await stage.store(count=5)
        reader = await stage.subscribe(selection, start)
        await asyncio.sleep(0.2)
        assert reader.events == [Ready(5)]
        expected = {Latest: 0, Earliest: 5, After: 3, Last: 2, Since: 5}[type(start)]
        assert reader.ids == list(range(6 - expected, 6))
        opened = reader.subscription.opened
        assert opened is not None
        assert (opened.seq, opened.holds) == (5 - expected, True)

    on_stage(play)


@EITHER
def test_starts_that_fail_leave_no_feed(selection: Selection) -> None:
    async def play(stage: Stage) -> None:
        for _ in range(3):
            with pytest.raises(GaplessError) as refused:
                await stage.engine.subscribe(selection, After(10**9), Wire(), 15)
            assert refused.value.status == 400
            await asyncio.sleep(1)
        reader = await stage.subscribe(selection)
        reader.leave()
        with pytest.raises(GaplessError):
            await stage.engine.subscribe(selection, After(10**9), Wire(), 15)
        await asyncio.sleep(LINGER_S + 3)
        assert stage.engine.feeds == []

    on_stage(play)


@EITHER
def test_starts_that_are_given_up_leave_no_feed(selection: Selection) -> None:
    async def play(stage: Stage) -> None:
        for steps in range(12):
            joining = asyncio.create_task(stage.engine.subscribe(selection, Earliest(), Wire(), 15))
            await asyncio.sleep(0.001 * steps)
            joining.cancel()
            with suppress(asyncio.CancelledError):
                stage.engine.unsubscribe(await joining)
        await asyncio.sleep(LINGER_S + 3)
        assert stage.engine.feeds == []
        assert stage.engine.subscriptions == {}

    on_stage(play)


@EITHER
def test_a_start_is_refused_in_time_while_the_database_is_away(selection: Selection) -> None:
    async def play(stage: Stage) -> None:
        stage.down = True
        began = stage.loop.time()
        with pytest.raises(GaplessError) as refused:
            await stage.subscribe(selection)
        assert refused.value.code is Code.UNAVAILABLE
        assert stage.loop.time() - began <= START_TIMEOUT_S + 1
        stage.down = False
        await stage.store(count=2)
        reader = await stage.subscribe(selection)
        await asyncio.sleep(1)
        assert reader.ids == [1, 2]

    on_stage(play)


@EITHER
def test_a_database_that_goes_away_and_comes_back(selection: Selection) -> None:
    async def play(stage: Stage) -> None:
        await stage.store(count=2)
        reader = await stage.subscribe(selection)
        await asyncio.sleep(0.2)
        stage.down = True
        stage.hint(*(await stage.store(count=3))[1:])
        await asyncio.sleep(5)
        assert reader.ids == [1, 2]
        late = asyncio.create_task(stage.subscribe(selection, After(1)))
        await asyncio.sleep(0.1)
        stage.down = False
        await asyncio.sleep(2 * RETRY_S + 0.5)
        assert reader.ids == [1, 2, 3, 4, 5]
        with pytest.raises(GaplessError):
            await late

    on_stage(play)


def test_an_engine_without_readers_rests() -> None:
    """Once a second it asks for the watermark, on which retention waits; not more, whatever was going on."""

    async def play(stage: Stage) -> None:
        reader = await stage.subscribe(ALL)
        stage.skip(5)
        (id_,) = await stage.store()
        running = stage.log.begin([])  # A publisher that never ends: the hole below it does not settle.
        stage.hint(id_)
        reader.leave()
        await asyncio.sleep(LINGER_S + 3)
        assert stage.engine.feeds == []
        before, steps = stage.reads["tick"], stage.loop.steps
        await asyncio.sleep(100)
        assert 90 <= stage.reads["tick"] - before <= 110
        assert stage.loop.steps - steps < 100 * 30
        running.rollback()
        ids = await stage.store(count=2)
        await asyncio.sleep(2)
        assert stage.engine.watermark.settled == ids[-1]

    on_stage(play)


def test_no_more_streams_than_allowed_however_they_come() -> None:
    async def play(stage: Stage) -> None:
        starts = (stage.engine.subscribe(LOBBY, Earliest(), Wire(), 15) for _ in range(20))
        outcomes = await asyncio.gather(*starts, return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, GaplessError)]
        assert {error.code for error in refused} == {Code.RATE_LIMITED}
        assert (len(stage.engine.subscriptions), len(refused)) == (5, 15)

    on_stage(play, LiveLimits(max_streams=5))


@EITHER
def test_a_thousand_readers_cost_a_few_reads(selection: Selection) -> None:
    async def play(stage: Stage) -> None:
        await stage.store(count=50)
        await asyncio.sleep(0.1)
        stage.reads.clear()
        readers = await asyncio.gather(*(stage.subscribe(selection, After(10)) for _ in range(1000)))
        await asyncio.sleep(0.5)
        assert all(reader.ids == list(range(11, 51)) for reader in readers)
        assert stage.reads["page"] <= 3
        assert stage.reads.get("heads", 0) <= 6
        stage.hint(*await stage.store(count=3))
        await asyncio.sleep(0.5)
        assert all(reader.ids == list(range(11, 54)) for reader in readers)
        assert stage.reads["page"] <= 3

    on_stage(play)


def test_readers_at_one_position_share_one_write() -> None:
    async def play(stage: Stage) -> None:
        await stage.store(count=3)
        readers = [await stage.subscribe() for _ in range(2)]
        feed = readers[0].subscription.feed
        stage.hint(*await stage.store())
        await asyncio.sleep(0.1)
        first, second = (feed.chunk(3, Wire()) for _ in range(2))
        assert first is not None
        assert second is not None
        assert first[0] is second[0]

    on_stage(play)


def test_whoever_left_counts_no_more() -> None:
    async def play(stage: Stage) -> None:
        await stage.store(count=3)
        subscription = await stage.engine.subscribe(LOBBY, Earliest(), Wire(), 15)
        feed = subscription.feed
        assert feed.unready == 1
        stage.engine.unsubscribe(subscription)
        assert (feed.unready, feed.subscribers) == (0, {})
        with pytest.raises(ConnectionResetError):
            await subscription.next(stage.engine.read)

    on_stage(play)


def test_everybody_is_told_goodbye() -> None:
    async def play(stage: Stage) -> None:
        subscription = await stage.engine.subscribe(LOBBY, Latest(), Wire(), 15)
        assert isinstance(await subscription.next(stage.engine.read), Ready)
        waiting = asyncio.create_task(subscription.next(stage.engine.read))
        await asyncio.sleep(0.1)
        stage.engine.stop()
        assert await waiting is Goodbye.SHUTDOWN
        with pytest.raises(GaplessError):
            await stage.subscribe()

    on_stage(play)


@EITHER
def test_what_retention_took_is_said(selection: Selection) -> None:
    async def play(stage: Stage) -> None:
        await stage.store(count=10)
        stage.log.trim(PLACE, 3)
        reader = await stage.subscribe(selection, After(2))
        await asyncio.sleep(0.2)
        assert reader.events == [Gap("lobby", 8, 5), Ready(10)]
        assert reader.ids == [8, 9, 10]

    on_stage(play)


def test_what_retention_takes_between_two_pages_of_the_last_messages_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("subscriptions.engine.live.live_subscription.STARTS_LIMIT", 2)

    async def play(stage: Stage) -> None:
        await stage.store(count=10)
        subscription = await stage.engine.subscribe(LOBBY, Last(6), Wire(), 15)
        first = await subscription.next(stage.engine.read)
        stage.log.trim(PLACE, 2)
        second = await subscription.next(stage.engine.read)
        assert (first, second) == (_chunk(stage, 5, 6), Gap("lobby", 9, 2))

    on_stage(play)


def test_ephemeral_messages_come_in_order_and_the_oldest_go_first() -> None:
    async def play(stage: Stage) -> None:
        reader = await stage.subscribe()
        await asyncio.sleep(0.1)
        size = EPHEMERAL_BYTES // 4
        for number in range(6):
            stage.engine.hear_ephemeral(EphemeralHint(NAMESPACE, "lobby", "a", None, bytes([number]) * size))
        await asyncio.sleep(0.1)
        heard = [event.body[0] for event in reader.events if isinstance(event, Ephemeral)]
        assert heard == [2, 3, 4, 5]
        stage.engine.hear_ephemeral(EphemeralHint(NAMESPACE, "lobby", "a", None, b"\x06"))
        stage.engine.hear_ephemeral(EphemeralHint(NAMESPACE, "other", "a", None, b"\x07"))
        await asyncio.sleep(0.1)
        heard = [event.body[0] for event in reader.events if isinstance(event, Ephemeral)]
        assert heard == [2, 3, 4, 5, 6]

    on_stage(play)


def test_filters_let_through_what_they_name() -> None:
    async def play(stage: Stage) -> None:
        await stage.store(count=2, type="a", key="k")
        await stage.store(count=2, type="b", key="k")
        chosen = [
            select(NAMESPACE, ("lobby",), types=("a",)),
            select(NAMESPACE, patterns=("*",), types=("a",)),
            select(NAMESPACE, ("lobby",), keys=("k",), types=("b",)),
            select(NAMESPACE, patterns=("lobby",), keys=("other",)),
        ]
        readers = [await stage.subscribe(selection) for selection in chosen]
        await asyncio.sleep(0.1)
        stage.hint(*await stage.store(type="a", key="k"), *await stage.store(type="b", key="other"))
        await asyncio.sleep(2)
        assert [reader.ids for reader in readers] == [[1, 2, 5], [1, 2, 5], [3, 4], [6]]
        assert all(reader.ready for reader in readers)

    on_stage(play)


def _chunk(stage: Stage, *ids: int) -> Chunk:
    return Chunk(b"".join(encode(stage.log.by_id[id_][1]) for id_ in ids))


def test_hot_tails_share_evenly_however_many_feeds_open() -> None:
    total = 40 * MIN_TAIL_BYTES

    async def play(stage: Stage) -> None:
        readers = [await stage.subscribe(select(NAMESPACE, [f"room.{n}"])) for n in range(20)]
        await asyncio.sleep(2)
        shares = [feed.tail.max_bytes for feed in stage.engine.feeds]
        assert len(shares) == len(readers) == 20
        assert len(set(shares)) == 1
        assert total / 2 < sum(shares) <= total

    on_stage(play, LiveLimits(tail_bytes=total))
