"""When messages are published that wait for their time, under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from subscriptions.domain.delivery import Touched
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.engine import reaper
from subscriptions.engine.gate import Gate
from subscriptions.engine.reaper import Scheduler
from tests.sim.loop import SeededLoop, run


class Due:
    """Stands for the database: what is due at which time, and when each was published."""

    def __init__(self, loop: SeededLoop) -> None:
        self.loop = loop
        self.waiting: list[float] = []
        self.late: list[float] = []
        self.asked = 0
        self.away = False

    async def publish_due(self, namespaces: Collection[str], limit: int) -> tuple[int, tuple[Touched, ...]]:
        self.asked += 1
        now = self.loop.time()
        if self.away:
            raise GaplessError(Code.UNAVAILABLE, "away")
        due = [at for at in self.waiting if at <= now][:limit]
        self.waiting = [at for at in self.waiting if at not in due]
        self.late += [now - at for at in due]
        return len(due), ()


def on_schedule(*in_s: float, away_s: float = 0.0) -> Due:
    """Expect these, run for ten seconds."""

    async def program() -> None:
        due.away = away_s > 0
        scheduler = Scheduler(due, gate, clock=loop.time, touched=lambda _: None)  # type: ignore[arg-type]
        running = asyncio.create_task(scheduler.run())
        for each in in_s:
            due.waiting.append(loop.time() + each)
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
    assert (due.waiting, len(due.late)) == ([], 6)
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
        due.waiting.append(0.0)
        scheduler = Scheduler(due, Gate(), clock=loop.time, touched=lambda _: None)  # type: ignore[arg-type]
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
