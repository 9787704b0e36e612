"""When messages are published that wait for their time, under virtual time."""

from __future__ import annotations

import asyncio

from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import NewMessage
from subscriptions.engine.durable import reaper
from subscriptions.engine.durable.reaper import Scheduler
from subscriptions.engine.gate import Gate
from tests.contract.memory_log import MemoryLog
from tests.contract.memory_schedule import MemorySchedule
from tests.sim.loop import SeededLoop, run


class Due(MemorySchedule):
    """What is due at which time; while it is `away` nothing is published."""

    def __init__(self, loop: SeededLoop) -> None:
        super().__init__(MemoryLog(lambda: round(loop.time() * 1_000_000)), pause=self._ask)
        self.asked = 0
        self.away = False
        self.moments: list[int] = []

    async def _ask(self, step: str) -> None:
        self.asked += step == "publish_due"
        if self.away and step == "publish_due":
            raise GaplessError(Code.UNAVAILABLE, "away")

    async def add(self, in_s: float) -> None:
        """A message that is due so much later."""
        stored, _ = await self.schedule("default", [NewMessage("c", b"1")], [(None, in_s)], None, b"")
        self.moments += [each.deliver_at_us for each in stored]

    @property
    def late(self) -> list[float]:
        """By how many seconds each was late that was published."""
        came = [message.created_at_us for _, message in self.log.by_id.values()]
        return [(at - due) / 1e6 for at, due in zip(sorted(came), sorted(self.moments), strict=False)]


def on_schedule(*in_s: float, away_s: float = 0.0) -> Due:
    """Expect these, run for ten seconds."""

    async def program() -> None:
        due.away = away_s > 0
        scheduler = Scheduler(due, gate, clock=loop.time, touched=lambda _: None)
        running = asyncio.create_task(scheduler.run())
        for each in in_s:
            await due.add(each)
            scheduler.expect(each)
        await asyncio.sleep(away_s)
        due.away = False
        await asyncio.sleep(10 - away_s)
        running.cancel()

    loop = SeededLoop()
    due = Due(loop)
    gate = Gate()
    gate.open(["default"])
    run(program(), loop=loop)
    return due


def test_each_is_on_time() -> None:
    due = on_schedule(3.1, 1.05, 1.1, 1.1, 7.77, 0)
    assert (due.waiting, len(due.late)) == ({}, 6)
    assert max(due.late) < 1e-6
    assert due.asked < 10 / reaper.EVERY_S + 10


def test_what_is_not_expected_is_looked_for() -> None:
    assert 18 <= on_schedule().asked <= 22


def test_what_came_due_while_the_database_was_away_comes_soon_after() -> None:
    due = on_schedule(0.5, 0.6, away_s=4)
    assert len(due.late) == 2
    assert all(3 < late < 5 for late in due.late)


def test_nothing_is_published_before_the_gate_opens() -> None:
    async def program() -> int:
        await due.add(0.0)
        scheduler = Scheduler(due, Gate(), clock=loop.time, touched=lambda _: None)
        running = asyncio.create_task(scheduler.run())
        await asyncio.sleep(5)
        running.cancel()
        return due.asked

    loop = SeededLoop()
    due = Due(loop)
    assert run(program(), loop=loop) == 0


def test_what_is_expected_is_bounded() -> None:
    scheduler = Scheduler(None, Gate(), clock=lambda: 0.0, touched=lambda _: None)  # type: ignore[arg-type]
    for number in range(2 * reaper.MAX_EXPECTED):
        scheduler.expect(number)
    assert len(scheduler._expected) == reaper.MAX_EXPECTED
