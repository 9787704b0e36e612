"""What `gapless serve` does around its workers, for a process that it did not start: embedded servers, the
migration, and an end to streams when the process is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import msgspec

from app import program


class CannotStartError(RuntimeError):
    """Something that the service needs is not there. The reason is on standard error."""


class Urls(msgspec.Struct):
    """Where the servers are."""

    database_url: str
    redis_url: str


class Companion:
    """A process that starts the embedded servers for which no URL was given, and migrates the schema. It
    keeps those servers running until this process leaves it, or is gone. It reads the same settings.

    It is a process of its own because servers end with the thread that started them, which may be any here.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            program.command("app.cli.companion"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in the terminal must not end the servers before the service.
        )

    async def urls(self) -> Urls:
        """Waits until everything is there. Raises CannotStartError."""
        assert self._process.stdout is not None
        line = await asyncio.to_thread(self._process.stdout.readline)
        if not line:
            raise CannotStartError("Gapless cannot start; the reason is on standard error")
        return msgspec.json.decode(line, type=Urls)

    def leave(self) -> None:
        """Lets it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def ended(self) -> None:
        """Lets it end, and waits until it has."""
        self.leave()
        await asyncio.to_thread(self._process.wait)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def told_to_stop(tell: Callable[[], None]) -> Iterator[None]:
    """Calls `tell` in the running loop whenever SIGINT or SIGTERM asks this process to stop. A server waits
    for open streams then, and would not tell them. Its own handlers are called as before.

    Outside the main thread there are no signals, and nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def told(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(tell)
        handler = before[number]
        if callable(handler):
            handler(number, frame)
        elif handler is signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {int(number): signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, told)
    try:
        yield
    finally:
        for number in numbers:
            if signal.getsignal(number) is told:
                signal.signal(number, before[number])
