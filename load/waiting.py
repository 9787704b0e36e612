"""How long loads and tests wait for what must happen: one bound for all. It only ends a run that is broken.

Nothing is measured by it: what takes 10 ms on an idle machine may take seconds on a busy one.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")

_VARIABLE = "GAPLESS_TEST_SLOWNESS"
_REFERENCE_S = 0.1
"""What `_work` takes on an idle machine of the kind that the tests were written on."""
LOOK_S = 0.05


def _work() -> float:
    """The seconds that a fixed piece of work takes here and now."""
    began = time.perf_counter()
    digest = b""
    for _ in range(150_000):
        digest = hashlib.sha256(digest).digest()
    return time.perf_counter() - began


def _slowness() -> float:
    """How many times slower than the reference this machine is, from 1 to 4. It is measured once: the
    processes of a run inherit it."""
    if _VARIABLE not in os.environ:
        os.environ[_VARIABLE] = f"{min(4.0, max(1.0, _work() / _REFERENCE_S)):.2f}"
    return float(os.environ[_VARIABLE])


SLOWNESS = _slowness()
PATIENCE_S = 60.0 * SLOWNESS


async def in_time(awaited: Awaitable[T], patience_s: float = PATIENCE_S) -> T:
    """What is awaited. Raises TimeoutError after `patience_s`."""
    # A test may replace `asyncio.timeout` by its own, to see the product's.
    async with asyncio.timeout_at(asyncio.get_running_loop().time() + patience_s):
        return await awaited


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait for their ends. Raises what one of them has raised by itself."""
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
            raise outcome


async def until(
    look: Callable[[], Awaitable[Any] | Any],
    what: str,
    patience_s: float = PATIENCE_S,
    every_s: float = LOOK_S,
) -> float:
    """Poll until `look` returns a true value. Returns the seconds it took. Raises RuntimeError after
    `patience_s`."""
    began = time.monotonic()
    while True:
        found = look()
        if await found if inspect.isawaitable(found) else found:
            return time.monotonic() - began
        _out_of_patience(began, what, patience_s)
        await asyncio.sleep(every_s)


def wait_until(look: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> None:
    """Like `until`, without an event loop."""
    began = time.monotonic()
    while not look():
        _out_of_patience(began, what, patience_s)
        time.sleep(LOOK_S)


def _out_of_patience(began: float, what: str, patience_s: float) -> None:
    if time.monotonic() - began > patience_s:
        raise RuntimeError(f"not so after {patience_s:g} s: {what}")
