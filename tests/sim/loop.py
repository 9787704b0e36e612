"""An event loop under virtual time: no I/O, no waiting, and every choice made by a seed.

Of all callbacks that are ready the seed picks the next one, so one program shows as many interleavings as it
is given seeds, and each of them again and again. Without a seed it is an ordinary loop, only faster.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from asyncio import base_events
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class StuckError(Exception):
    """Nothing is ready and no timer runs: the program waits for something that cannot happen."""


class SeededLoop(base_events.BaseEventLoop):
    """`steps` counts the callbacks that ran; `trace` folds which ones were picked into one number."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self._random = None if seed is None else random.Random(seed)
        self._now = 0.0
        self.steps = 0
        self.trace = 0
        self.failures: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.failures.append(context))

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        # The base class appends to `_ready` and `_scheduled`; only the choice of what runs is made here.
        ready, timers = self._ready, self._scheduled
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)
        if not ready and not timers:
            raise StuckError(repr([task for task in asyncio.all_tasks(self) if not task.done()]))
        if not ready:
            self._now = max(self._now, timers[0].when())
        while timers and timers[0].when() <= self._now:
            timer = heapq.heappop(timers)
            ready.append(timer)
        at = 0 if self._random is None else self._random.randrange(len(ready))
        handle = ready[at]
        del ready[at]
        self.steps += 1
        self.trace = (self.trace * 1_000_003 + at * 31 + len(ready)) & 0xFFFF_FFFF_FFFF
        if not handle._cancelled:
            handle._run()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are dropped when their time comes."""

    def _write_to_self(self) -> None:
        """There is no selector to wake."""

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""


def run(program: Coroutine[Any, Any, T], seed: int | None = None, *, loop: SeededLoop | None = None) -> T:
    """Tail a program to its end; what it left behind is cancelled. An error nobody looked at is raised."""
    loop = loop or SeededLoop(seed)
    asyncio.set_event_loop(loop)
    try:
        result = loop.run_until_complete(program)
    finally:
        _cancel_all(loop)
        asyncio.set_event_loop(None)
        loop.close()
    for failure in loop.failures:
        raise failure.get("exception") or AssertionError(failure["message"])
    return result


def _cancel_all(loop: SeededLoop) -> None:
    # Who is cancelled may begin something as it goes.
    while tasks := sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name()):
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
