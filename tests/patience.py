"""How long a test waits for what must happen: one bound for all. It only ends a run that is broken.

A test never measures time by it: what takes 10 ms on an idle machine may take seconds on a busy one.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

_VARIABLE = "GAPLESS_TEST_SLOWNESS"
_REFERENCE_S = 0.1
"""What `_work` takes on an idle machine of the kind that the tests were written on."""


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


async def eventually(look: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
    """Wait until `look` gives something true, and give it back."""
    deadline = time.monotonic() + timeout_s
    while True:
        seen = look()
        value = await seen if isinstance(seen, Awaitable) else seen
        if value:
            return value
        assert time.monotonic() < deadline, f"still {value!r} after {timeout_s} s"
        await asyncio.sleep(0.01)


def http_client(url: str = "", **options: Any) -> httpx.AsyncClient:
    """A client of a service. httpx by itself gives up after 5 s."""
    return httpx.AsyncClient(base_url=url, **{"timeout": PATIENCE_S, **options})


def wait_until(look: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
    """Like `eventually`, without an event loop."""
    deadline = time.monotonic() + timeout_s
    while not (value := look()):
        assert time.monotonic() < deadline, f"still {value!r} after {timeout_s} s"
        time.sleep(0.01)
    return value
