"""Markers that move: the readers that asked for them are told, in every process, and nothing else changes."""

from __future__ import annotations

import asyncio

from subscriptions.domain.selection import select
from subscriptions.engine.hints import EphemeralHint, MarkerHint
from subscriptions.engine.live.feed import EPHEMERAL_BYTES
from subscriptions.engine.live.live_subscription import Ephemeral, Ready
from subscriptions.engine.live.starts import Latest
from tests.contract.listener import Listener
from tests.engine.stage import NAMESPACE, Reader, Stage, on_stage
from tests.engine.test_presence import Wire, hosts
from tests.patience import eventually

MARKED = select(NAMESPACE, ("lobby",), markers=True)


def moved(number: int, channel: str = "lobby", namespace: str = NAMESPACE, size: int = 1) -> MarkerHint:
    return MarkerHint(namespace, channel, bytes([number]) * size)


def told(reader: Reader) -> list[int]:
    """The numbers of the markers that it was told of."""
    return [e.body[0] for e in reader.events if isinstance(e, Ephemeral) and e.is_marker]


def test_only_readers_that_asked_for_markers_of_the_channel_are_told() -> None:
    async def play(stage: Stage) -> None:
        asked = [
            await stage.subscribe(MARKED),
            await stage.subscribe(select(NAMESPACE, patterns=("*",), markers=True)),
            await stage.subscribe(select(NAMESPACE, ("a", "lobby"), types=("t",), markers=True)),
        ]
        others = [
            await stage.subscribe(),
            await stage.subscribe(select(NAMESPACE, patterns=(">",))),
            await stage.subscribe(select(NAMESPACE, ("a",), markers=True)),
            await stage.subscribe(select("other", ("lobby",), markers=True)),
        ]
        await asyncio.sleep(0.1)
        for number in (1, 2):
            stage.engine.hear_ephemeral(moved(number))
        await asyncio.sleep(0.1)
        assert [told(reader) for reader in asked] == [[1, 2]] * 3
        assert [told(reader) for reader in others] == [[]] * 4
        assert all(len(reader.events) == 1 for reader in others), "nothing but `Ready`"

    on_stage(play)


def test_markers_move_no_cursor_and_come_between_messages() -> None:
    async def play(stage: Stage) -> None:
        reader = await stage.subscribe(MARKED)
        plain = await stage.subscribe()
        await asyncio.sleep(0.1)
        for number in range(1, 4):
            stage.hint(*await stage.store())
            stage.engine.hear_ephemeral(moved(number))
            stage.engine.hear_ephemeral(EphemeralHint(NAMESPACE, "lobby", "t", None, b"\x09"))
            await asyncio.sleep(0.1)
            assert reader.subscription.cursor == number
        assert reader.ids == plain.ids == [1, 2, 3]
        assert told(reader) == [1, 2, 3]
        spoken = [[e for e in each.events if isinstance(e, Ephemeral)] for each in (reader, plain)]
        assert [[e.is_marker for e in each] for each in spoken] == [[True, False] * 3, [False] * 3]

    on_stage(play)


def test_a_reader_that_is_slow_misses_the_oldest_markers_and_no_message() -> None:
    async def play(stage: Stage) -> None:
        reader = await stage.subscribe(MARKED)
        await asyncio.sleep(0.1)
        size = EPHEMERAL_BYTES // 4
        ids = await stage.store(count=3)
        stage.hint(*ids)
        for number in range(6):
            stage.engine.hear_ephemeral(moved(number, size=size))
        await asyncio.sleep(0.1)
        assert told(reader) == [2, 3, 4, 5]
        assert reader.ids == ids
        [feed] = stage.engine.feeds
        assert len(feed.ephemeral) == 4

    on_stage(play)


async def test_other_processes_are_told_once() -> None:
    """Of the markers of one request together, and not again of those that somebody sends again."""
    async with hosts() as (one, two, bus):
        here, there = [await each.live.subscribe(MARKED, Latest(), Wire(), 1000) for each in (one, two)]
        for subscription in (here, there):
            assert isinstance(await subscription.next(one.reader), Ready)
        thief = Listener(bus.open, one.live.identity)
        await thief.connected()
        one.exchange.send_markers([moved(1), moved(2)])
        one.exchange.send_markers([])
        for body in (b"\x01", b"\x02"):
            assert await here.next(one.reader) == await there.next(two.reader) == Ephemeral(body, True)
        await eventually(lambda: thief.heard)
        assert len(thief.heard) == 1
        thief.bus.send(thief.heard[0])
        await eventually(lambda: two.exchange.forged == 1)
        two.exchange.send_markers([moved(3)])
        for subscription in (here, there):
            assert await subscription.next(one.reader) == Ephemeral(b"\x03", True)
        await thief.stop()
