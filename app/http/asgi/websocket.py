"""A WebSocket of another server. Lines that wait are sent as one message, as the client protocol allows."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive, Send
from websockets.frames import CloseCode

from app.http.asgi.connection import aborting
from app.http.websocket import BAD_REQUEST, MAX_MESSAGE_BYTES, MAX_WAITING_BYTES, Receiver
from app.metrics.registry import CUT_OFF


class AsgiWebSocket:
    """One connection, once it is accepted. `run` reads from it until its end."""

    def __init__(self, receive: Receive, send: Send, slow_reader_s: float) -> None:
        self._receive = receive
        self._send = send
        self._slow_reader_s = slow_reader_s
        self._waiting = bytearray()
        self._sending: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._closing = False
        self._close: Message | None = None
        self._receiver: Receiver | None = None

    def __repr__(self) -> str:
        return f"AsgiWebSocket({'closing' if self._closing else 'open'}, {self._receiver!r})"

    @property
    def is_closing(self) -> bool:
        """Whether it is gone, or is being closed."""
        return self._closing

    def begin(self, receiver: Receiver) -> None:
        """Passes everything that comes to `receiver` from here on."""
        self._receiver = receiver

    async def run(self) -> None:
        """Reads until the connection has ended."""
        self._reading = asyncio.create_task(self._read())
        try:
            await asyncio.wait([self._reading])
        finally:
            self._reading.cancel()
            self._end()
        if self._sending is not None:
            await asyncio.wait([self._sending])
        if not self._reading.cancelled():
            self._reading.result()

    # What sessions use of it.

    def write(self, lines: bytes) -> None:
        """Writes lines behind those that wait. A client that lets too many wait is cut off."""
        if self._closing:
            return
        if len(self._waiting) > MAX_WAITING_BYTES:
            self._cut_off()
            return
        self._waiting += lines
        self._send_soon()

    def write_chunk(self, lines: bytes) -> bool:
        """Writes lines at once and returns True. If some still wait here, it only returns False."""
        if self._closing or self._sending is not None:
            return False
        self.write(lines)
        return True

    def queue(self, size_bytes: int) -> None:
        """Nothing is counted: the bytes that wait are the server's."""

    async def taken(self) -> None:
        """Returns once the server has taken all lines, or the connection is gone."""
        while self._sending is not None and not self._closing:
            await asyncio.wait([self._sending])

    def close(self, code: int, reason: str) -> None:
        """Closes the connection behind all lines that wait."""
        if not self._closing:
            self._close = {"type": "websocket.close", "code": code, "reason": reason}
            self._send_soon()
            self._end()

    # The rest.

    async def _read(self) -> None:
        while (message := await self._receive())["type"] != "websocket.disconnect":
            text = message.get("text")
            if self._closing or self._receiver is None:
                continue  # The server ends it.
            if text is None:
                self.close(BAD_REQUEST, "text messages only")
            elif len(lines := text.encode()) > MAX_MESSAGE_BYTES:
                self.close(CloseCode.MESSAGE_TOO_BIG, "the message is too long")
            else:
                self._receiver.received(lines)
            # A client that takes nothing cannot make the server write more.
            await self.taken()

    def _send_soon(self) -> None:
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all())

    async def _send_all(self) -> None:
        try:
            async with asyncio.timeout(None) as patience:
                while self._waiting or self._close is not None:
                    patience.reschedule(asyncio.get_running_loop().time() + self._slow_reader_s)
                    await self._send(self._next())
        except TimeoutError:
            self._sending = None
            self._cut_off()
        except (OSError, RuntimeError):
            self._end()  # The client was gone already.
        finally:
            self._sending = None

    def _next(self) -> Message:
        if self._waiting:
            text = self._waiting.removesuffix(b"\n").decode()
            self._waiting.clear()
            return {"type": "websocket.send", "text": text}
        close, self._close = self._close, None
        assert close is not None, "the caller looked"
        return close

    def _cut_off(self) -> None:
        """The client takes nothing. A close would wait behind what it does not take."""
        CUT_OFF.labels("slow_consumer").inc()
        self._waiting.clear()
        abort = aborting(self._send)
        if abort is not None:
            abort()
        self._end()
        if self._reading is not None:
            self._reading.cancel()

    def _end(self) -> None:
        self._closing = True
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.dropped()
