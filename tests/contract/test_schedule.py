"""Messages that are published later, whatever stands behind the port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from app.embedded import EmbeddedPostgres
from db.scheduled import Schedule
from subscriptions.domain.delivery import Scheduled, Touched
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import NewMessage
from subscriptions.ports import HistoryPage, HistoryQuery, SchedulePort
from tests.conftest import drop_database, make_database
from tests.contract.bench import Memory, code_of
from tests.contract.memory import MemoryHistory
from tests.contract.memory_schedule import MemorySchedule
from tests.race.queues import Queues, open_queues

HERE = ["default"]


@dataclass(frozen=True, slots=True)
class Later:
    """An empty schedule through its port, what it has published, and time."""

    port: SchedulePort
    careful: SchedulePort
    """Makes no channels."""
    pass_time: Callable[[float], Awaitable[None]]
    history: Callable[[HistoryQuery], Awaitable[HistoryPage]]

    async def add(
        self, *data: object, delay: float = 60, channel: str = "c", key: str | None = None, body: bytes = b""
    ) -> list[Scheduled]:
        """In one request."""
        messages = [NewMessage(channel, str(datum).encode()) for datum in data]
        moments = [(None, delay)] * len(messages)
        return (await self.port.schedule("default", messages, moments, key, body))[0]

    async def published(self, channel: str = "c") -> list[str]:
        """In the order of their ids; of a channel that does not exist nothing."""
        query = HistoryQuery("default", channel, None, None, None, (), (), 100)
        try:
            found = (await self.history(query)).messages
        except GaplessError:
            return []
        return [(message.data or b"").decode() for message in found]

    async def due(self, namespaces: Sequence[str] = HERE, limit: int = 100) -> tuple[int, list[Any]]:
        done, touched = await self.port.publish_due(namespaces, limit)
        return done, sorted(map(told, touched))


def told(touched: Touched) -> tuple[str, str, int]:
    return touched.namespace, touched.channel, touched.last_seq


@pytest.fixture(params=["memory", "postgres"])
async def later(request: pytest.FixtureRequest, postgres: EmbeddedPostgres) -> AsyncIterator[Later]:
    if request.param == "memory":
        memory = Memory()
        careful = MemorySchedule(memory.log, create_channels=False)
        history = MemoryHistory(memory.log).history
        yield Later(MemorySchedule(memory.log), careful, memory.pass_time, history)
        return
    database = await make_database(postgres)
    async with open_queues(database) as queues:
        yield _in_postgres(queues)
    await drop_database(postgres, database)


def _in_postgres(queues: Queues) -> Later:
    careful = Schedule(queues.pool, queues.namespaces, create_channels=False)
    return Later(queues.schedule, careful, queues.pass_time, queues.history.history)


async def test_nothing_is_published_before_it_is_due(later: Later) -> None:
    await later.add(1, delay=60)
    await later.add(2, delay=120)
    await later.pass_time(59)
    assert await later.due() == (0, [])
    assert await later.published() == []
    await later.pass_time(2)
    assert await later.due() == (1, [("default", "c", 1)])
    assert await later.published() == ["1"]


async def test_what_is_due_comes_in_the_order_of_its_moments(later: Later) -> None:
    await later.add(4, delay=30)
    await later.add(1, delay=10)
    await later.add(2, 3, delay=20)
    await later.pass_time(31)
    assert await later.due(limit=2) == (2, [("default", "c", 2)])
    assert await later.due() == (2, [("default", "c", 4)])
    assert await later.published() == ["1", "2", "3", "4"]


async def test_each_channel_is_told_of_once(later: Later) -> None:
    for channel in ("a", "b", "a"):
        await later.add(1, delay=1, channel=channel)
    await later.pass_time(2)
    assert await later.due() == (3, [("default", "a", 2), ("default", "b", 1)])


async def test_namespaces_that_are_not_asked_for_wait(later: Later) -> None:
    await later.add(1, delay=0)
    await later.pass_time(1)
    assert await later.due([]) == (0, [])
    assert await later.due() == (1, [("default", "c", 1)])


async def test_a_moment_is_a_time_or_a_delay(later: Later) -> None:
    (by_delay,) = await later.add(1, delay=60)
    assert by_delay.deliver_at_us == by_delay.created_at_us + 60_000_000
    at_us = by_delay.created_at_us + 5_000_000
    (by_time,), _ = await later.port.schedule("default", [NewMessage("c", b"2")], [(at_us, None)], None, b"")
    assert by_time.deliver_at_us == at_us
    await later.pass_time(10)
    await later.due()
    assert await later.published() == ["2"]


async def test_what_waits_is_found_until_it_is_published(later: Later) -> None:
    first, second = await later.add(1, 2, delay=10)
    (other,) = await later.add(3, channel="d", delay=20)
    assert await later.port.get("default", first.id) == first
    assert await later.port.page("default", None, 0, 10) == [first, second, other]
    assert await later.port.page("default", None, first.id, 1) == [second]
    assert await later.port.page("default", "d", 0, 10) == [other]
    assert await later.port.page("default", None, 0, 1, "^d$") == [other]
    assert await later.port.page("default", None, 0, 10, "^e$|^c$") == [first, second]
    assert await later.port.page("default", "d", 0, 10, "^c$") == []
    await later.pass_time(11)
    await later.due()
    assert await code_of(later.port.get("default", first.id)) is Code.MESSAGE_NOT_FOUND
    assert [each.id for each in await later.port.page("default", None, 0, 10)] == [other.id]


async def test_what_is_cancelled_never_comes(later: Later) -> None:
    first, second = await later.add(1, 2, delay=10)
    await later.port.cancel("default", first.id)
    assert await code_of(later.port.cancel("default", first.id)) is Code.MESSAGE_NOT_FOUND
    await later.pass_time(11)
    assert await later.due() == (1, [("default", "c", 1)])
    assert await later.published() == ["2"]
    assert await code_of(later.port.cancel("default", second.id)) is Code.MESSAGE_NOT_FOUND


async def test_what_is_promoted_comes_now_and_once(later: Later) -> None:
    first, second = await later.add(1, 2, delay=10)
    appended, touched = await later.port.promote("default", second.id)
    (position,) = appended.positions
    assert ((position.channel, position.seq), list(map(told, touched))) == (("c", 1), [("default", "c", 1)])
    assert await code_of(later.port.promote("default", second.id)) is Code.MESSAGE_NOT_FOUND
    await later.pass_time(11)
    await later.due()
    assert await later.published() == ["2", "1"]
    assert await code_of(later.port.promote("default", first.id)) is Code.MESSAGE_NOT_FOUND


async def test_a_request_with_a_key_is_stored_once(later: Later) -> None:
    messages, moments = [NewMessage("c", b"1"), NewMessage("c", b"2")], [(None, 10.0), (None, 20.0)]
    asked = ("default", messages, moments, "key", b"body")
    stored, again = await later.port.schedule(*asked)
    assert again is False
    assert await later.port.schedule(*asked) == (stored, True)
    assert await later.port.page("default", None, 0, 10) == stored
    other = later.port.schedule("default", messages, moments, "key", b"another body")
    assert await code_of(other) is Code.IDEMPOTENCY_MISMATCH


async def test_a_careful_schedule_makes_no_channel(later: Later) -> None:
    asked = ("default", [NewMessage("c", b"1")], [(None, 1.0)], None, b"")
    assert await code_of(later.careful.schedule(*asked)) is Code.CHANNEL_NOT_FOUND
    (stored,) = await later.add(1, delay=0)
    await later.port.promote("default", stored.id)
    assert (await later.careful.schedule(*asked))[1] is False
