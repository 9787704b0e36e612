"""Writes a long answer through the `send` of its request, where the connection itself must not be written to:
behind middleware, and under another server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from starlette.types import Send

logger = logging.getLogger("gapless.http")


class ServerSide(Protocol):
    """What is known of a request's connection. `on_lost` is called once when it is gone; `goodbye` is what a
    client that was too slow is told last, where the server can."""

    on_lost: Callable[[], None] | None
    goodbye: bytes | None

    @property
    def is_closing(self) -> bool: ...

    def write_buffer_size(self) -> int: ...

    def queue(self, size_bytes: int) -> None: ...

    async def taken(self) -> None: ...

    def cut_off(self) -> None: ...

    def abort(self) -> None: ...


class Through:
    """A connection whose answer is written with `send`, in the order of the calls. Who writes with `send`
    itself waits for `taken` first."""

    __slots__ = ("_below", "_send", "_sending", "_waiting")

    def __init__(self, below: ServerSide, send: Send) -> None:
        self._below = below
        self._send = send
        self._waiting = bytearray()
        self._sending: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Through({self._below!r})"

    @property
    def on_lost(self) -> Callable[[], None] | None:
        return self._below.on_lost

    @on_lost.setter
    def on_lost(self, callback: Callable[[], None] | None) -> None:
        self._below.on_lost = callback

    @property
    def goodbye(self) -> bytes | None:
        return self._below.goodbye

    @goodbye.setter
    def goodbye(self, last: bytes | None) -> None:
        self._below.goodbye = last

    @property
    def is_closing(self) -> bool:
        return self._below.is_closing

    def write(self, data: bytes) -> None:
        """Writes behind what waits."""
        self._waiting += data
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all())

    def write_chunk(self, data: bytes) -> bool:
        """Writes at once and returns True. If bytes still wait here, it only returns False."""
        if self._sending is not None or self._below.write_buffer_size():
            return False
        self.write(data)
        return True

    def write_buffer_size(self) -> int:
        return len(self._waiting) + self._below.write_buffer_size()

    def queue(self, size_bytes: int) -> None:
        self._below.queue(size_bytes)

    async def taken(self) -> None:
        while self._sending is not None:
            await asyncio.wait([self._sending])
        await self._below.taken()

    def cut_off(self) -> None:
        self._below.cut_off()

    def abort(self) -> None:
        self._below.abort()

    async def _send_all(self) -> None:
        try:
            while self._waiting and not self._below.is_closing:
                data = bytes(self._waiting)
                self._waiting.clear()
                await self._send({"type": "http.response.body", "body": data, "more_body": True})
        except Exception:
            # It is somebody's middleware that failed: the client has to come again.
            logger.exception("a stream failed")
            self._below.abort()
        finally:
            self._waiting.clear()
            self._sending = None
