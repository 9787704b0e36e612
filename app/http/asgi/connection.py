"""A connection of another server, as far as ASGI tells of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from starlette.types import Message, Receive, Scope, Send

from app.http.limits import MAX_REQUEST_BYTES, body_due, too_late, too_long
from app.http.problem import Headers
from app.metrics.registry import CUT_OFF

PATIENCE_S: Final = 9.5
"""How long a body may be still, as in `app.http.protocol`."""
GONE_S: Final = 1.0
"""How long a server may take to notice that its connection was dropped."""


def aborting(send: Send) -> Callable[[], None] | None:
    """What drops the connection at once. ASGI has no message for that, but uvicorn's `send` belongs to an
    object that has the transport."""
    found: Any = getattr(getattr(send, "__self__", None), "transport", None)
    abort: Callable[[], None] | None = getattr(found, "abort", None)
    return abort


class AsgiConnection:
    """A request and its answer, held to the times and sizes of the server's own protocol. What is sent to a
    client that is gone is dropped, as uvicorn does."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, every_answer: Headers, slow_reader_s: float
    ) -> None:
        self.goodbye: bytes | None = None
        """Not sent: ASGI cannot write behind bytes that a client does not take."""
        self._receive = receive
        self._send = send
        self._every_answer = every_answer
        self._slow_reader_s = slow_reader_s
        self._may_close = scope["http_version"].startswith("1.")
        self._abort = aborting(send)
        self._whole = False
        """Whether the whole body has come; known once the server has told."""
        self._is_asked = any(name == b"expect" for name, _ in scope["headers"])
        """Whether the client may wait for an answer before it sends the body."""
        self._received_bytes = 0
        self._began = -1.0
        self._lost = asyncio.Event()
        self._on_lost: Callable[[], None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._aborted = False

    def __repr__(self) -> str:
        return f"AsgiConnection({'gone' if self.is_closing else 'open'})"

    # What handlers use of it.

    @property
    def on_lost(self) -> Callable[[], None] | None:
        return self._on_lost

    @on_lost.setter
    def on_lost(self, callback: Callable[[], None] | None) -> None:
        self._on_lost = callback
        if callback is not None:
            self._watch()

    @property
    def is_closing(self) -> bool:
        return self._lost.is_set()

    def write_buffer_size(self) -> int:
        return 0

    def queue(self, size_bytes: int) -> None:
        """Nothing is counted: the bytes that wait are the server's."""

    async def taken(self) -> None:
        """Returns at once: `send` waits."""

    def cut_off(self) -> None:
        CUT_OFF.labels("slow_consumer").inc()
        self.abort()

    def abort(self) -> None:
        if not self.is_closing:
            self._aborted = True
            if self._abort is not None:
                self._abort()
            self._lose()

    # What the application gets in place of the server's.

    async def receive(self) -> Message:
        """A part of the body, or that the client is gone. Raises `request_timeout` and
        `payload_too_large`."""
        if self._whole or self._watching is not None or self.is_closing:
            self._watch()
            await self._lost.wait()
            return {"type": "http.disconnect"}
        now = asyncio.get_running_loop().time()
        if self._began < 0:
            self._began = now
        try:
            async with asyncio.timeout_at(body_due(now, self._began, self._received_bytes, PATIENCE_S)):
                message = await self._receive()
        except TimeoutError:
            raise too_late() from None
        if message["type"] == "http.disconnect":
            self._lose()
            return message
        self._whole = not message.get("more_body", False)
        self._received_bytes += len(message.get("body", b""))
        if self._received_bytes > MAX_REQUEST_BYTES:
            raise too_long()
        return message

    async def send(self, message: Message) -> None:
        """Passes a part of the answer on. A client that takes none of it for too long is cut off."""
        if self.is_closing:
            return
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *self._every_answer]}
            if self._is_asked and not self._whole and self._may_close:
                # Nobody knows whether the body comes, or the next request.
                message["headers"].append((b"connection", b"close"))
        try:
            async with asyncio.timeout(self._slow_reader_s):
                await self._send(message)
        except TimeoutError:
            self.cut_off()
        except OSError:
            self._lose()

    async def close(self) -> None:
        """The request is answered. Raises ConnectionAbortedError if only that makes the server drop the
        connection."""
        if self._watching is not None:
            self._watching.cancel()
        if not self._aborted:
            return
        if self._abort is None:
            raise ConnectionAbortedError("the client was cut off")
        # Else the server would take a half answer for a defect.
        try:
            async with asyncio.timeout(GONE_S):
                while (await self._receive())["type"] != "http.disconnect":
                    pass
        except TimeoutError:
            pass

    def _watch(self) -> None:
        if self._watching is None:
            self._watching = asyncio.create_task(self._await_end())

    async def _await_end(self) -> None:
        while (message := await self._receive())["type"] != "http.disconnect":
            self._received_bytes += len(message.get("body", b""))
            if self._received_bytes > MAX_REQUEST_BYTES:
                self.abort()
                return
        self._lose()

    def _lose(self) -> None:
        self._lost.set()
        callback, self._on_lost = self._on_lost, None
        if callback is not None:
            callback()
