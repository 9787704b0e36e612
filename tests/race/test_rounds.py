"""Two racing publishers and a subscriber, 48 times at once and 40 times over, on the real database: nothing
lost, nothing doubled, nothing out of order. With any one of the three healers off, something is."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from subscriptions.domain.model import Append, NewMessage
from subscriptions.domain.selection import select
from subscriptions.engine.entry import Entry
from subscriptions.engine.hints import ChannelHint, entries_of
from subscriptions.engine.live import engine as live
from subscriptions.engine.live.engine import LiveEngine
from subscriptions.engine.live.live_subscription import Chunk
from subscriptions.engine.live.starts import After
from subscriptions.engine.publisher import Publisher
from tests.conftest import Database
from tests.patience import PATIENCE_S, cancel
from tests.race.support import appenders, reader
from tests.sim import mutants
from tests.sim.world import Wire, encode, read_frames

AT_ONCE, OVER = 48, 40
EACH = 3
"""Messages of one publisher in one round."""


@dataclass(slots=True)
class Process:
    engine: LiveEngine
    publisher: Publisher


@dataclass(slots=True)
class Tally:
    """What went wrong, in messages."""

    rounds: int = 0
    lost: int = 0
    doubled: int = 0
    disordered: int = 0


class Lossy:
    """Carries hints between the processes, badly: a third is lost, some come twice, most come late."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.processes: list[Process] = []

    def committed(self, number: int) -> Callable[[list[tuple[ChannelHint, list[Entry]]]], None]:
        """What the publisher of process `number` calls."""

        def tell(hints: list[tuple[ChannelHint, list[Entry]]]) -> None:
            for process in self.processes:
                own = process is self.processes[number]
                times = 1 if own else self._chance.choice((0, 1, 2))
                for hint, _ in hints * times:
                    if own and self._chance.random() < 0.5:
                        continue
                    late_s = self._chance.random() * 0.004
                    heard = [(hint, entries_of(hint))]
                    asyncio.get_running_loop().call_later(late_s, process.engine.hear, heard)

        return tell


@asynccontextmanager
async def service(database: Database, seed: int) -> AsyncIterator[list[Process]]:
    """Two processes' worth of engines and publishers, and a bad bus between them."""
    bus = Lossy(random.Random(seed))
    async with reader(database) as first, reader(database) as second, appenders(database, 4) as four:
        for number, read in enumerate((first, second)):
            engine = LiveEngine(read, encode, clock=time.monotonic)
            pair = four[2 * number : 2 * number + 2]
            bus.processes.append(Process(engine, Publisher(pair, encode, bus.committed(number))))
        running = [asyncio.create_task(process.engine.run()) for process in bus.processes]
        for process in bus.processes:
            process.publisher.start()
        try:
            yield bus.processes
        finally:
            for process in bus.processes:
                await process.publisher.stop()
            await cancel(*running)


async def _publish(process: Process, channels: list[str]) -> None:
    for turn in range(EACH):
        await process.publisher.publish(
            Append("default", (NewMessage(channels[turn % len(channels)], b"{}"),))
        )


async def _subscribe(
    processes: list[Process], channels: list[str], chance: random.Random, got: list[int]
) -> None:
    """Read until all is there, cut off now and then and resumed with either process."""
    cursor = 0
    while len(set(got)) < 2 * EACH:
        process = chance.choice(processes)
        subscription = await process.engine.subscribe(select("default", channels), After(cursor), Wire(), 15)
        try:
            for _ in range(chance.randint(1, 4)):
                event = await subscription.next(process.engine.read)
                if isinstance(event, Chunk):
                    got += [id_ for id_, _, _ in read_frames(event.data)]
                    cursor = got[-1]
                if len(set(got)) >= 2 * EACH:
                    break
        finally:
            process.engine.unsubscribe(subscription)


async def _round(
    processes: list[Process], name: str, chance: random.Random, tally: Tally, wait_s: float
) -> None:
    """Every fourth round is about two channels, whose ids must come in one order."""
    channels = [name] if chance.random() < 0.75 else [f"{name}.x", f"{name}.y"]
    got: list[int] = []
    reading = asyncio.create_task(_subscribe(processes, channels, chance, got))
    await asyncio.gather(*(_publish(process, channels) for process in processes))
    await asyncio.wait([reading], timeout=wait_s)
    reading.cancel()
    tally.rounds += 1
    tally.lost += 2 * EACH - len(set(got))
    tally.doubled += len(got) - len(set(got))
    tally.disordered += sum(a > b for a, b in itertools.pairwise(got))


async def _race(database: Database, seed: int, over: int, wait_s: float) -> Tally:
    tally = Tally()

    async def lane(processes: list[Process], number: int) -> None:
        chance = random.Random(seed * 1000 + number)
        for turn in range(over):
            await _round(processes, f"r{seed}-{number}-{turn}", chance, tally, wait_s)

    async with service(database, seed) as processes:
        await asyncio.gather(*(lane(processes, number) for number in range(AT_ONCE)))
    return tally


async def test_nothing_is_lost_doubled_or_out_of_order(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LINGER_S", 0.5)
    monkeypatch.setattr(live, "START_TIMEOUT_S", PATIENCE_S)
    tally = await _race(database, seed=1, over=OVER, wait_s=PATIENCE_S)
    assert tally == Tally(rounds=AT_ONCE * OVER)


@pytest.mark.parametrize("switch_off", [mutants.no_dedupe, mutants.no_backfill, mutants.no_sweep])
async def test_no_healer_can_be_missed(
    database: Database, monkeypatch: pytest.MonkeyPatch, switch_off: Callable[[pytest.MonkeyPatch], None]
) -> None:
    began = time.monotonic()
    assert await _race(database, seed=2, over=2, wait_s=PATIENCE_S) == Tally(rounds=2 * AT_ONCE)
    # What is only late must not look lost: each round has more time than two took with all healers.
    wait_s = max(2.5, 1.5 * (time.monotonic() - began))
    switch_off(monkeypatch)
    for seed in range(3, 13):  # real races: a run may be lucky
        tally = await _race(database, seed=seed, over=2, wait_s=wait_s)
        assert tally.rounds == 2 * AT_ONCE
        if tally.lost + tally.doubled + tally.disordered > 0:
            return
    raise AssertionError("nobody missed it")
