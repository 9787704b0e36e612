"""What a worker does by itself: loops with one contract."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)

Run = Callable[[], Coroutine[Any, Any, None]]
"""Begins a loop that goes on until it is cancelled."""


class Loop:
    """A loop that is started once and stopped once. One that ends by an error takes the process with it: the
    supervisor starts another one."""

    __slots__ = ("_name", "_run", "_task")

    def __init__(self, name: str, run: Run) -> None:
        self._name = name
        self._run = run
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        if self._task is None:
            return f"Loop({self._name}: not started)"
        return f"Loop({self._name}: {'ended' if self._task.done() else 'running'})"

    def start(self) -> None:
        """Begin."""
        assert self._task is None, "a loop is started once"
        self._task = asyncio.create_task(self._run(), name=self._name)
        self._task.add_done_callback(self._end)

    async def stop(self) -> None:
        """Cancel it, and wait until it has ended. One that was never started is left alone."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("the loop %s ended", self._name, exc_info=error)
            raise SystemExit(1)


class Loops:
    """Loops that are stopped together."""

    def __init__(self) -> None:
        self._loops: list[Loop] = []

    def __repr__(self) -> str:
        return f"Loops({self._loops})"

    def start(self, name: str, run: Run) -> None:
        """Start another one."""
        loop = Loop(name, run)
        self._loops.append(loop)
        loop.start()

    async def stop(self) -> None:
        """Stop all of them."""
        await asyncio.gather(*(loop.stop() for loop in self._loops))
