"""One WebSocket connection: an HTTP connection that was upgraded. It reads and writes whole messages.

The `websockets` library parses frames and keeps the rules of RFC 6455. Messages are written as frames that
many connections may share. Nothing is compressed: a small frame could become large in memory, and each
connection would keep a window of 32 KiB.

One read of the transport can hold 43,000 frames. In a turn of the event loop, a connection takes `MAX_FRAMES`
of them, and `MAX_LINES` lines. The others wait for the next turn, and nothing is read meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Sequence
from typing import Final, Protocol

from uvicorn.server import ServerState
from websockets.datastructures import Headers
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request as Handshake
from websockets.http11 import Response
from websockets.protocol import OPEN, Side
from websockets.protocol import Protocol as LibraryFrames
from websockets.server import ServerProtocol
from websockets.streams import StreamReader
from websockets.typing import Subprotocol

from app.http.connections import Shared
from app.http.cycle import Flow
from app.http.writing import WritingHalf

MAX_MESSAGE_BYTES: Final = 2 * 1024 * 1024
"""Of a message from a client: some commands, or one with the largest payload."""
MAX_FRAMES: Final = 100
"""Frames of a connection in a turn."""
MAX_LINES: Final = 1000
"""Line breaks in the frames of a turn; its last frame may go beyond. A line is a command."""
MAX_EMPTY_FRAMES: Final = 1000
"""Frames without content in `FLOOD_S`: pings, pongs, and frames of no bytes. With more the connection is
closed with 1008. A client that pings every second sends ten."""
FLOOD_S: Final = 10.0
BAD_REQUEST: Final = 3501
"""The code after which clients do not come back, since they would send the same again."""
CLOSE_S: Final = 2.0
"""The time in which a client may answer a close."""
MAX_WAITING_BYTES: Final = 16 * 1024 * 1024
"""Of replies that wait for a client that does not take them. More than the longest reply takes."""
_TEXT_FRAME: Final = 0x81


def text_frame(payload: bytes) -> bytes:
    """A text message as a server sends it: one frame, not masked (RFC 6455, section 5.2)."""
    size = len(payload)
    if size < 126:
        return bytes((_TEXT_FRAME, size)) + payload
    if size < 65536:
        return bytes((_TEXT_FRAME, 126)) + size.to_bytes(2, "big") + payload
    return bytes((_TEXT_FRAME, 127)) + size.to_bytes(8, "big") + payload


def accept(target: str, headers: Sequence[tuple[bytes, bytes]], subprotocols: Sequence[str]) -> Response:
    """Answers the request for an upgrade: with 101, or a refusal. Chooses the first of `subprotocols` that is
    offered."""

    def choose(server: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
        return next((Subprotocol(one) for one in subprotocols if one in offered), None)

    server = ServerProtocol(select_subprotocol=choose)
    given = Headers((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
    return server.accept(Handshake(target, given))


class Receiver(Protocol):
    """What a connection tells about itself. None of these may block or raise."""

    def received(self, message: bytes) -> None:
        """A whole text message has come, in valid UTF-8."""

    def dropped(self) -> None:
        """The connection is gone, or is being closed. Nothing is sent any more."""

    def stop(self) -> None:
        """The server stops: close the connection, once the replies that are due are written."""

    def slow_ending(self) -> tuple[int, str]:
        """The code and the reason for closing if the client is too slow."""


class _Turns(StreamReader):
    """The bytes that have come. The library parses no further frame of them than a turn may have."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = self.lines = 0
        """How many more this turn may have."""

    @property
    def is_over(self) -> bool:
        """Whether the turn has had all that it may have."""
        return self.frames <= 0 or self.lines <= 0

    def at_eof(self) -> Generator[None, None, bool]:
        # Asked before each frame.
        while self.is_over and self.buffer:
            yield
        return (yield from super().at_eof())


class Frames(LibraryFrames):
    """The library's reader and writer of frames, except that a client may close within a message, and that
    frames are read in turns."""

    def __init__(self) -> None:
        super().__init__(Side.SERVER, state=OPEN, max_size=MAX_MESSAGE_BYTES)
        self.reader: _Turns = _Turns()
        self.parser = self.parse()
        next(self.parser)  # As the library does: the parser waits at its reader.
        self._empty = 0
        self._counted_at = 0.0  # Loop time, from which on `_empty` counts.

    def take_turn(self, data: bytes, now: float) -> bool:
        """Reads the frames of a turn, of bytes that waited and of `data`. Returns whether some wait for the
        next one. `now`: loop time."""
        self.reader.frames, self.reader.lines = MAX_FRAMES, MAX_LINES
        if now - self._counted_at >= FLOOD_S:
            self._empty, self._counted_at = 0, now
        self.receive_data(data)
        if self._empty > MAX_EMPTY_FRAMES and self.state is OPEN:
            # What still comes is dropped and not parsed.
            self.fail(CloseCode.POLICY_VIOLATION, "too many frames without content")
            self.reader.discard()
        return self.is_waiting

    @property
    def is_waiting(self) -> bool:
        """Whether frames wait for the next turn."""
        return self.reader.is_over and bool(self.reader.buffer)

    def recv_frame(self, frame: Frame) -> None:
        self.reader.frames -= 1
        self.reader.lines -= bytes(frame.data).count(b"\n")
        # Some clients end a message that they send in fragments with an empty one.
        ends = frame.opcode is Opcode.CONT and frame.fin and self.current_size
        if frame.opcode is Opcode.PING or frame.opcode is Opcode.PONG or not (frame.data or ends):
            self._empty += 1
        if frame.opcode is Opcode.CLOSE:
            # Control frames may come between the fragments of a message (RFC 6455, section 5.4). The library
            # would answer a close there with 1002.
            self.current_size = None
        super().recv_frame(frame)


class WebSocketConnection(WritingHalf, asyncio.Protocol):
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
        "_turn",
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
        self._owe_nothing()
        self._frames = Frames()
        self._turn: asyncio.Handle | None = None  # The next one, while frames wait for it.
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
        """Writes whole frames, unless the connection is being closed."""
        if not self._closing:
            self._write(frames)

    def write_chunk(self, frames: bytes) -> bool:
        """Writes whole frames at once and returns True. If bytes still wait here, it only returns False.
        Connections may share the same bytes object."""
        if self._closing or self.transport.get_write_buffer_size():
            return False
        self._write_shared(frames)
        return True

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
        is_more = frames.take_turn(data, self.loop.time())
        # A pong for each ping, in their order; those between two messages are one write. A close comes last,
        # if there is one.
        writes = frames.data_to_send()
        pings = 0
        for frame in frames.events_received():
            assert isinstance(frame, Frame), "the handshake is over"
            if frame.opcode is Opcode.PING:
                pings += 1
            elif not self._closing and frame.opcode is not Opcode.PONG:
                self._send_pongs(writes, pings)
                pings = 0
                self._take(frame)
        self._send_pongs(writes, pings)
        self._send(writes)
        if frames.close_expected():
            self._end()
        if is_more and not self.transport.is_closing():
            self.flow.pause_reading()
            self._await_turn()
        self._count()

    def _send_pongs(self, writes: list[bytes], count: int) -> None:
        if count:
            pongs, writes[:count] = b"".join(writes[:count]), ()
            self._send([pongs])

    def _await_turn(self) -> None:
        """The client has to take what was written for it before its next turn."""
        if self._turn is None and not self.transport.get_write_buffer_size():
            self._turn = self.loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn = None
        if not (self.transport.get_write_buffer_size() or self.transport.is_closing()):
            self.data_received(b"")
            self._read_on()

    def _read_on(self) -> None:
        """Reads more, unless frames or bytes wait."""
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            return
        if self._frames.is_waiting:
            self._await_turn()
        else:
            self.flow.resume_reading()

    def eof_received(self) -> None:
        # The transport closes itself once all bytes are taken.
        self._frames.receive_eof()
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._owe_no_more()
        self._state.connections.discard(self)
        self._closing = True
        self.flow.resume_writing()
        self._tell_dropped()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.flow.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._read_on()

    def shutdown(self) -> None:
        """The server stops."""
        if self._receiver is not None:
            self._receiver.stop()

    # Limits.

    def cut_off(self) -> None:
        if self._receiver is None or self._closing:
            self.abort()
            return
        # Behind all waiting bytes: a client that soon reads on is told.
        self.close(*self._receiver.slow_ending())

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

    def _pass_on(self, opcode: Opcode, message: bytes) -> None:
        if opcode is Opcode.BINARY and not self.accepts_binary:
            self.close(BAD_REQUEST, "text messages only")
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
                self._write(data)
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
