"""Waits for a condition that can only be polled: a port, a log, a count."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

LOOK_S = 0.05


async def until(
    look: Callable[[], Awaitable[Any] | Any], what: str, patience_s: float = 60.0, every_s: float = LOOK_S
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


def wait_until(look: Callable[[], Any], what: str, patience_s: float = 60.0) -> None:
    """Like `until`, without an event loop."""
    began = time.monotonic()
    while not look():
        _out_of_patience(began, what, patience_s)
        time.sleep(LOOK_S)


def _out_of_patience(began: float, what: str, patience_s: float) -> None:
    if time.monotonic() - began > patience_s:
        raise RuntimeError(f"not so after {patience_s:g} s: {what}")
