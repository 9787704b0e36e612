"""Waits of tests. `load.waiting` has their bound."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable
from typing import IO, Any, AnyStr

import httpx

from load.waiting import PATIENCE_S, SLOWNESS, cancel, in_time

__all__ = [
    "PATIENCE_S",
    "SLOWNESS",
    "cancel",
    "eventually",
    "http_client",
    "in_time",
    "next_line",
    "wait_until",
]


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


def next_line(process: subprocess.Popen[AnyStr], stream: IO[AnyStr] | None) -> AnyStr:
    """The next line that a child writes to this pipe of its own. One that writes none in time is killed."""
    assert stream is not None, "the stream is a pipe"
    timer = threading.Timer(PATIENCE_S, process.kill)
    timer.start()
    try:
        return stream.readline()
    finally:
        timer.cancel()
