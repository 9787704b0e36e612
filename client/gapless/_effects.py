"""Time and randomness, passed in so that tests can replace them."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import uuid4


def _new_key() -> str:
    return str(uuid4())


async def _wait_async(seconds: float, closing: asyncio.Event | None) -> None:
    if closing is None:
        await asyncio.sleep(seconds)
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await closing.wait()


def _wait(seconds: float, closing: threading.Event | None) -> None:
    if closing is None:
        time.sleep(seconds)
    else:
        closing.wait(seconds)


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of time and randomness.

    `clock` is monotonic, in seconds. `chance` is uniform in [0, 1). `new_key` returns a unique key for a
    publish. `wall` is this machine's time of day, in seconds since the Unix epoch.
    """

    clock: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random
    new_key: Callable[[], str] = _new_key
    wall: Callable[[], float] = field(default=time.time, kw_only=True)


@dataclass(frozen=True, slots=True)
class AsyncEffects(Sources):
    """`sleep` waits that many seconds, or until another task closes the stream and sets the event."""

    sleep: Callable[[float, asyncio.Event | None], Awaitable[None]] = _wait_async


@dataclass(frozen=True, slots=True)
class Effects(Sources):
    """`sleep` waits that many seconds, or until another thread closes the stream and sets the event."""

    sleep: Callable[[float, threading.Event | None], None] = _wait
