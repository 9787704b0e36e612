"""One WebSocket connection: an HTTP connection that was upgraded. It reads and writes whole messages.

The `websockets` library parses frames and keeps the rules of RFC 6455. Messages are written as frames that
many connections may share. Nothing is compressed: a small frame could become large in memory, and each
connection would keep a window of 32 KiB.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from uvicorn.server import ServerState
from websockets.datastructures import Headers
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request as Handshake
from websockets.http11 import Response
from websockets.protocol import OPEN, Side
from websockets.protocol import Protocol as LibraryFrames
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from app.connections import Shared
from app.http_parts import Flow
from app.unread import Unread

MAX_MESSAGE_BYTES: Final = 2 * 1024 * 1024
"""Of a message from a client: some commands, or one with the largest payload."""
CLOSE_S: Final = 2.0
"""The time in which a client may answer a close."""
_TEXT_FRAME: Final = 0x81


def text_frame(payload: bytes) -> bytes:
    """A text message as a server sends it: one frame, not masked (RFC 6455, section 5.2)."""
    size = len(payload)
    if size < 126:
        return bytes((_TEXT_FRAME, size)) + payload
    if size < 65536:
        return bytes((_TEXT_FRAME, 126)) + size.to_bytes(2, "big") + payload
    return bytes((_TEXT_FRAME, 127)) + size.to_bytes(8, "big") + payload


def accept(target: str, headers: Sequence[tuple[bytes, bytes]], subprotocol: str) -> Response:
    """Answers the request for an upgrade: with 101, or a refusal. Chooses `subprotocol` if it is offered."""

    def choose(server: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
        return Subprotocol(subprotocol) if subprotocol in offered else None

    server = ServerProtocol(select_subprotocol=choose)
    given = Headers((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
    return server.accept(Handshake(target, given))


class Receiver(Protocol):
    """What a connection tells about itself. None of these may block or raise."""

    def received(self, message: bytes) -> None:
        """A whole text message has come, in valid UTF-8."""

    def dropped(self) -> None:
        """The connection is gone, or is being closed. Nothing is sent any more."""

    def ending(self, *, slow: bool) -> tuple[int, str]:
        """The code and the reason for closing: the client is too slow, or else the server stops."""


class Frames(LibraryFrames):
    """The library's reader and writer of frames, except that a client may close within a message."""

    def recv_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.CLOSE:
            # Control frames may come between the fragments of a message (RFC 6455, section 5.4). The library
            # would answer a close there with 1002.
            self.current_size = None
        super().recv_frame(frame)


class WebSocketConnection(Unread, asyncio.Protocol):
    """One connection. It begins when the handshake was answered.

    While bytes wait that the client does not take, nothing is read from it either, so that it cannot make the
    server write more.
    """

    __slots__ = (
        "_closing",
        "_frames",
        "_kind",
        "_parts",
        "_receiver",
        "_shared",
        "_state",
        "flow",
        "loop",
        "slow_reader_s",
        "transport",
    )

    accepts_binary = False
    """Whether binary messages are received too."""

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        shared: Shared,
        state: ServerState,
        slow_reader_s: float,
    ) -> None:
        self.transport = transport
        self.loop = loop
        self.flow = Flow(transport)
        self.slow_reader_s = slow_reader_s
        self._shared = shared
        self._state = state
        self._untaken = 0
        self._frames = Frames(Side.SERVER, state=OPEN, max_size=MAX_MESSAGE_BYTES)
        self._kind = Opcode.TEXT  # Of the last message that began.
        self._parts: bytearray | None = None  # What has come of a message that is not complete.
        self._closing = False
        self._receiver: Receiver | None = None

    def begin(self, receiver: Receiver) -> None:
        """Passes everything that comes to `receiver` from here on."""
        self._receiver = receiver
        if self.transport.is_closing():
            # The client left before its handshake was answered. No `connection_lost` may come any more.
            self._closing = True
            self._tell_dropped()
            return
        self._state.connections.add(self)  # type: ignore[arg-type]
        self.transport.set_protocol(self)

    def __repr__(self) -> str:
        return f"WebSocketConnection({'closing' if self._closing else 'open'}, {self._receiver!r})"

    @property
    def is_closing(self) -> bool:
        """Whether it is gone, or is being closed."""
        return self._closing

    # Writing.

    def write(self, frames: bytes) -> None:
        """Writes whole frames, unless the connection is being closed. Call `drain` before large ones."""
        if not self._closing:
            self.flow.written_bytes = len(frames)
            self.transport.write(frames)

    def write_chunk(self, frames: bytes) -> bool:
        """Writes whole frames at once and returns True. If bytes still wait here, it only returns False.
        Connections may share the same bytes object."""
        if self._closing or self.transport.get_write_buffer_size():
            return False
        self._write_shared(frames)
        return True

    async def drain(self) -> None:
        """Returns when all bytes are taken, or the connection is gone."""
        # Others may have waited too, and have written first.
        while self.flow.write_paused and not self._closing:
            await self.flow.drain()

    def close(self, code: int, reason: str) -> None:
        """Closes the connection: the client is told the code and the reason, and may answer for `CLOSE_S`."""
        if self._closing:
            return
        if self._frames.state is OPEN:
            self._frames.send_close(code, reason)
        self._send(self._frames.data_to_send())
        self._end()

    # Called by the transport.

    def data_received(self, data: bytes) -> None:
        frames = self._frames
        frames.receive_data(data)
        # A pong for each ping, in their order. A close comes last, if there is one.
        writes = iter(frames.data_to_send())
        for frame in frames.events_received():
            assert isinstance(frame, Frame), "the handshake is over"
            if frame.opcode is Opcode.PING:
                self._send([next(writes)])
            elif not self._closing:
                self._take(frame)
        self._send(writes)
        if frames.close_expected():
            self._end()
        self._count()

    def eof_received(self) -> None:
        # The transport closes itself once all bytes are taken.
        self._frames.receive_eof()
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.senders.drop(self)
        self._shared.readers.drop(self)
        self._shared.budget.release(self)
        self._state.connections.discard(self)
        self._closing = True
        self.flow.resume_writing()
        self._tell_dropped()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.flow.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._count()
        self.flow.resume_reading()

    def shutdown(self) -> None:
        """The server stops."""
        if self._receiver is not None:
            self.close(*self._receiver.ending(slow=False))

    # Limits.

    def cut_off(self) -> None:
        if self._receiver is None or self._closing:
            self.abort()
            return
        # Behind all waiting bytes: a client that soon reads on is told.
        self.close(*self._receiver.ending(slow=True))

    def timed_out(self, now: float) -> None:
        self._shared.senders.drop(self)
        self.abort()

    # The rest.

    def _take(self, frame: Frame) -> None:
        if frame.opcode is Opcode.CONT:
            assert self._parts is not None, "the library refuses a continuation of nothing"
            self._parts += frame.data
        elif frame.opcode is Opcode.TEXT or frame.opcode is Opcode.BINARY:
            self._kind = frame.opcode
            if frame.fin:
                self._pass_on(self._kind, bytes(frame.data))
            else:
                self._parts = bytearray(frame.data)
            return
        else:
            return
        if frame.fin:
            message, self._parts = bytes(self._parts), None
            self._pass_on(self._kind, message)

    def _received_bytes(self) -> int:
        return len(self._frames.reader.buffer) + len(self._parts or b"")

    def _count(self) -> None:
        """Holds the bytes of an incomplete message. Nothing is read while bytes wait to be taken, except by a
        connection that is being closed."""
        if self.flow.write_paused:
            return
        if held_bytes := self._received_bytes() + self.transport.get_write_buffer_size():
            self._shared.budget.hold(self, held_bytes)
        else:
            self._shared.budget.release(self)

    def _pass_on(self, opcode: Opcode, message: bytes) -> None:
        if opcode is Opcode.BINARY and not self.accepts_binary:
            self.close(CloseCode.UNSUPPORTED_DATA, "text messages only")
            return
        if opcode is Opcode.TEXT and not message.isascii():
            try:
                message.decode()
            except UnicodeDecodeError:
                self.close(CloseCode.INVALID_DATA, "not UTF-8")
                return
        if self._receiver is not None:
            self._receiver.received(message)

    def _send(self, writes: Iterable[bytes]) -> None:
        """Writes what the library has to say: pongs, closes, and an empty piece for the end."""
        for data in writes:
            if self.transport.is_closing():
                return
            if data:
                self.transport.write(data)
            else:
                # Bytes that still arrive are dropped until the client closes too: to close here could reset
                # the connection, and the client would lose the code.
                self.transport.write_eof()

    def _end(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._parts = None
        self._shared.senders.expect(self, self.loop.time() + CLOSE_S)
        self.flow.resume_writing()
        self._tell_dropped()

    def _tell_dropped(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.dropped()
