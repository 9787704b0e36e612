"""What `gapless serve` does around its workers, for a process that it did not start: embedded servers, the
migration, and an end to streams when the process is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import msgspec

from app import launch

AGAIN_S: Final = 1.0
logger = logging.getLogger("gapless.http")


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
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._left = False

    async def urls(self) -> Urls:
        """Starts it, and waits until everything is there. Raises CannotStartError."""
        urls = await self._start()
        self._keeping = asyncio.create_task(self._keep())
        return urls

    def leave(self) -> None:
        """Lets it end."""
        self._left = True
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    async def ended(self) -> None:
        """Lets it end, and waits until it has."""
        self.leave()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        if self._process is not None:
            await self._process.wait()

    async def _start(self) -> Urls:
        self._process = await asyncio.create_subprocess_exec(
            *launch.command("app.cli.companion"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in the terminal must not end the servers before the service.
        )
        if self._left:
            self.leave()
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise CannotStartError("Gapless cannot start; the reason is on standard error")
        return msgspec.json.decode(line, type=Urls)

    async def _keep(self) -> None:
        """Starts another one each time it was killed. It ends by itself where there is no embedded server."""
        while self._process is not None and await self._process.wait() != 0 and not self._left:
            logger.error("the process that runs the embedded servers was killed; starting another one")
            try:
                await self._start()
            except CannotStartError:
                await asyncio.sleep(AGAIN_S)


@contextmanager
def on_stop(tell: Callable[[], None]) -> Iterator[None]:
    """Calls `tell` in the running loop whenever SIGINT or SIGTERM asks this process to stop. A server waits
    for open streams then, and would not tell them; and it closes WebSockets with a code of its own. So its
    handlers are called when the tasks that `tell` made have begun: what they send first is sent by then.

    Outside the main thread there are no signals, and nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def handle(number: int, frame: FrameType | None) -> None:
        handler = before[number]

        def stop() -> None:
            tell()
            if callable(handler):
                loop.call_soon(handler, number, frame)

        loop.call_soon_threadsafe(stop)
        if handler is signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {int(number): signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in numbers:
            if signal.getsignal(number) is handle:
                signal.signal(number, before[number])
