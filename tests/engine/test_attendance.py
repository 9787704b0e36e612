"""What the database is told of members, in whatever order they come and go, and whatever fails meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from subscriptions.domain.errors import GaplessError, unavailable
from subscriptions.engine.durable.attendance import RETRY_S, Attendance
from tests.contract.memory_deliveries import MemoryDeliveries
from tests.contract.memory_log import MemoryLog
from tests.contract.memory_queues import MemoryQueues
from tests.sim.loop import run

HOLDER = 7


class Book(MemoryDeliveries):
    """Subscriptions 1 and 2. Each call takes a moment, and while it is `away` none arrives."""

    def __init__(self) -> None:
        super().__init__(MemoryQueues(MemoryLog()), self._ask)
        self.queues.subscribe("a")
        self.queues.subscribe("b")
        self.calls = 0
        self.away = False

    async def _ask(self, step: str) -> None:
        self.calls += 1
        await asyncio.sleep(0.01)
        if self.away:
            raise unavailable()

    @property
    def there(self) -> set[int]:
        """The subscriptions that have members here."""
        assert all(holder == HOLDER for _, holder in self.queues.attendance)
        return {subscription_id for subscription_id, _ in self.queues.attendance}


def test_one_is_known_from_its_answer_on_until_the_last_has_gone() -> None:
    async def scene() -> None:
        book = Book()
        attendance = Attendance(book, HOLDER)
        assert await attendance.enter(1)
        assert book.there == {1}
        assert await attendance.enter(1)
        attendance.come(2)
        await attendance.registered()
        assert (book.there, book.calls) == ({1, 2}, 2)
        attendance.go(1)
        await attendance.registered()
        assert book.there == {1, 2}
        attendance.go(1)
        attendance.go(2)
        await attendance.registered()
        assert book.there == set()
        assert await attendance.enter(3) is False
        await attendance.registered()
        await attendance.stop()

    run(scene(), 1)


@pytest.mark.parametrize("seed", range(20))
def test_comings_and_goings_at_once_end_as_they_should(seed: int) -> None:
    async def scene() -> None:
        book = Book()
        attendance = Attendance(book, HOLDER)
        for turn in range(12):
            attendance.come(1)
            await asyncio.sleep(0.003 * ((seed + turn) % 5))
            attendance.go(1)
            if turn % 3 == seed % 3:
                await asyncio.sleep(0)
        if seed % 2:
            assert await attendance.enter(1)
        await asyncio.sleep(1)
        assert book.there == ({1} if seed % 2 else set())
        await attendance.stop()

    run(scene(), seed)


def test_what_could_not_be_told_is_told_later() -> None:
    async def scene() -> None:
        book = Book()
        attendance = Attendance(book, HOLDER)
        assert await attendance.enter(1)
        book.away = True
        attendance.go(1)
        with pytest.raises(GaplessError):
            await attendance.enter(2)
        await asyncio.sleep(3 * RETRY_S)
        assert book.there == {1}
        book.away = False
        await asyncio.sleep(2 * RETRY_S)
        assert book.there == set()
        await attendance.stop()

    run(scene(), 1)


def test_it_is_told_again_where_this_process_was_taken_for_gone() -> None:
    async def scene() -> None:
        book = Book()
        attendance = Attendance(book, HOLDER)
        assert await attendance.enter(1)
        book.queues.attendance.clear()
        attendance.register_again()
        await attendance.registered()
        assert book.there == {1}
        await attendance.stop()

    run(scene(), 1)
