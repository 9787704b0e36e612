"""Turns signals into flags and wakes a select, so that one loop makes all decisions."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class Signals:
    """`stops` counts the requests to stop (SIGTERM, SIGINT), `reload` is set by SIGHUP. No handler raises: an
    exception at any line of an event loop can lose a callback, and whoever waits for it waits for ever."""

    def __init__(self) -> None:
        self.stops = 0
        self.reload = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._on_terminal = sys.stdout.isatty()

    @contextmanager
    def installed(self) -> Iterator[None]:
        handlers = {
            signal.SIGTERM: self._stop,
            signal.SIGINT: self._stop,
            signal.SIGHUP: self._hang_up,
            signal.SIGCHLD: self._wake,
        }
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        before_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before_fd)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._read)
            os.close(self._write)

    def fileno(self) -> int:
        return self._read

    def drain(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass

    async def unless_stopped(self, work: Awaitable[None]) -> None:
        """Do this in an event loop. Each request to stop cancels it; one from before does so too."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def check() -> None:
            self.drain()
            if self.stops:
                task.cancel()

        loop.add_reader(self._read, check)
        try:
            check()
            await work
        finally:
            loop.remove_reader(self._read)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stops += 1

    def _hang_up(self, number: int, frame: FrameType | None) -> None:
        """A reload; or a request to stop if the terminal was closed, because no user could stop it then."""
        if self._on_terminal:
            try:
                os.tcgetpgrp(1)
            except OSError:
                self._stop(number, frame)
                return
        self.reload = True

    def _wake(self, number: int, frame: FrameType | None) -> None:
        """Does nothing: the wakeup descriptor has woken the select already."""
