"""Shares one question to the storage among callers that ask at the same time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")
Question = TypeVar("Question", bound=Hashable)


class SingleFlight(Generic[T]):
    """Runs `ask` at most once at a time. Every caller gets an answer whose `ask` began after its call.

    So an answer is never older than its question, and a thousand callers at once cost one or two runs of
    `ask`. A run begins at least `pace_s` seconds after the one before it; `ask` may change that for the next
    run. So callers that come one after another share a run too. A single caller does not wait.
    """

    __slots__ = ("_ask", "_began", "_current", "_next", "pace_s")

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self.pace_s = 0.0
        self._ask = ask
        self._began = float("-inf")
        self._current: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    @property
    def awaited(self) -> bool:
        """Whether a run that has not begun was asked for."""
        return self._next is not None

    async def __call__(self) -> T:
        """The answer, or the error that `ask` raised."""
        if self._next is None:
            self._next = asyncio.create_task(self._begin(self._current))
            self._next.add_done_callback(_look_at)
        return await asyncio.shield(self._next)

    async def _begin(self, previous: asyncio.Task[T] | None) -> T:
        if previous is not None:
            with contextlib.suppress(Exception):
                await asyncio.shield(previous)
        clock = asyncio.get_running_loop().time
        if (wait_s := self._began + self.pace_s - clock()) > 0:
            await asyncio.sleep(wait_s)
        self._began = clock()
        # A caller from here on gets another run of `ask`.
        self._current, self._next = self._next, None
        return await self._ask()


class SingleFlights(Generic[Question, T]):
    """Shares each of many questions among those who ask the same one. A question is forgotten when its last
    run ends."""

    __slots__ = ("_ask", "_flights")

    def __init__(self, ask: Callable[[Question], Awaitable[T]]) -> None:
        self._ask = ask
        self._flights: dict[Question, SingleFlight[T]] = {}

    def __len__(self) -> int:
        """How many questions are being asked."""
        return len(self._flights)

    async def __call__(self, question: Question) -> T:
        """As `SingleFlight`."""
        flight = self._flights.get(question)
        if flight is None:
            flight = self._flights[question] = SingleFlight(partial(self._run, question))
        return await flight()

    async def _run(self, question: Question) -> T:
        try:
            return await self._ask(question)
        finally:
            if not self._flights[question].awaited:
                del self._flights[question]


def _look_at(task: asyncio.Task[T]) -> None:
    """Mark the error as seen: callers got it, or all of them left."""
    if not task.cancelled():
        task.exception()
