"""A small HTTP/1.1 client for load: keep-alive, one request in flight per connection, few copies.

The same code calls the service and its peers, so that a ratio compares servers, not clients.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar, cast

from load.waiting import PATIENCE_S, in_time

P = TypeVar("P", bound=asyncio.BaseProtocol)

MAX_HEAD = 64 * 1024
"""The most bytes of a response head. A longer one is an error of the server."""


class Response(NamedTuple):
    """One whole answer. `head` is everything before the blank line, unchanged."""

    status: int
    head: bytes
    body: bytes


class ProtocolError(Exception):
    """The answer is not HTTP/1.1, or uses a part of it that this client does not support."""


@dataclass(frozen=True, slots=True)
class Target:
    """The address on which a server listens, and the credential that its clients send, if any."""

    host: str
    port: int
    credential: str | None = None

    def request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> bytes:
        """A whole request as bytes. The type of a body is JSON, unless `headers` has another."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.host}:{self.port}"]
        named = {"Content-Type": "application/json", **(headers or {})} if body else headers or {}
        lines += [f"{name}: {value}" for name, value in named.items()]
        if self.credential is not None:
            lines.append(f"Authorization: Bearer {self.credential}")
        if body or method not in ("GET", "HEAD"):
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "", ""]).encode() + body

    async def connect(self, make: Callable[[], P]) -> P:
        """Connect. Returns the protocol object of the connection, which `make` makes. Raises OSError."""
        _, protocol = await asyncio.get_running_loop().create_connection(make, self.host, self.port)
        return protocol


def field(head: bytes, name: bytes) -> bytes | None:
    """The value of the response header with this lower-case name; None if it is missing."""
    lower = head.lower()
    at = lower.find(b"\r\n" + name + b":")
    if at < 0:
        return None
    start = at + len(name) + 3
    end = head.find(b"\r\n", start)
    return head[start : end if end >= 0 else len(head)].strip()


class Dechunker:
    """Removes the chunked transfer coding from a body as it arrives. `done`: the trailer has ended."""

    __slots__ = ("_ending", "_head", "_left", "done")

    def __init__(self) -> None:
        self._head = b""
        self._left = 0
        self._ending = False
        self.done = False

    def feed(self, data: bytes) -> bytes:
        """The body bytes in `data`. What follows the last chunk is ignored."""
        pieces: list[bytes] = []
        at, size = 0, len(data)
        while at < size and not self.done:
            if self._left > 2:
                end = min(size, at + self._left - 2)
                pieces.append(data[at:end])
                self._left -= end - at
                at = end
            elif self._left:
                skip = min(self._left, size - at)
                self._left -= skip
                at += skip
            else:
                at = self._size_line(data, at)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _size_line(self, data: bytes, at: int) -> int:
        """Read the line with the size of the next chunk. `_left` includes the CRLF after the chunk."""
        end = data.find(b"\n", at)
        if end < 0:
            self._head += data[at:]
            if len(self._head) > MAX_HEAD:
                raise ProtocolError("a chunk size without an end")
            return len(data)
        line = self._head + data[at:end]
        self._head = b""
        if self._ending:
            self.done = line in (b"", b"\r")
            return end + 1
        try:
            length = int(line.split(b";")[0], 16)
        except ValueError as error:
            raise ProtocolError(f"not a chunk size: {line[:40]!r}") from error
        self._ending = length == 0
        self._left = length + 2 if length else 0
        return end + 1


class Answers:
    """Cuts the bytes of a keep-alive connection into whole responses. It searches each byte once."""

    __slots__ = ("_coding", "_head", "_left", "_parts")

    def __init__(self) -> None:
        self._head = b""
        self._parts: list[bytes] | None = None
        self._left = 0
        self._coding: Dechunker | None = None

    def feed(self, data: bytes) -> Response | None:
        """The answer that `data` completes, or None. At most one request is in flight."""
        if self._parts is None:
            data = self._head + data if self._head else data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._head = data
                if len(data) > MAX_HEAD:
                    raise ProtocolError("a response head without an end")
                return None
            self._head, data = data[:end], data[end + 4 :]
            self._begin_body()
        return self._body(data)

    def _begin_body(self) -> None:
        head = self._head
        self._parts, self._coding, self._left = [], None, 0
        length = field(head, b"content-length")
        if length is not None:
            self._left = int(length)
        elif b"chunked" in (field(head, b"transfer-encoding") or b"").lower():
            self._coding = Dechunker()
        elif head[9:12] not in (b"204", b"304"):
            raise ProtocolError("a body without a length")

    def _body(self, data: bytes) -> Response | None:
        assert self._parts is not None
        if self._coding is not None:
            self._parts.append(self._coding.feed(data))
            if not self._coding.done:
                return None
        else:
            self._parts.append(data)
            self._left -= len(data)
            if self._left > 0:
                return None
        head, parts = self._head, self._parts
        self._head, self._parts = b"", None
        return Response(int(head[9:12]), head, parts[0] if len(parts) == 1 else b"".join(parts))


class Connection(asyncio.Protocol):
    """One keep-alive connection. `ask` raises ConnectionError if it ends before the whole answer."""

    def __init__(self) -> None:
        self._answers = Answers()
        self._waiter: asyncio.Future[Response] | None = None
        self._transport: asyncio.Transport | None = None

    @staticmethod
    async def open(target: Target) -> Connection:
        """Connect. Raises OSError."""
        return await target.connect(Connection)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        try:
            answer = self._answers.feed(data)
        except (ProtocolError, ValueError) as error:
            self._fail(ConnectionError(str(error)))
            self.close()
            return
        if answer is not None and self._waiter is not None:
            waiter, self._waiter = self._waiter, None
            if not waiter.done():
                waiter.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._transport = None
        self._fail(ConnectionError("the connection ended"))

    def _fail(self, error: Exception) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    @property
    def usable(self) -> bool:
        """Whether another request can be sent."""
        return self._transport is not None and self._waiter is None

    async def ask(self, request: bytes, wait: float = PATIENCE_S) -> Response:
        """Send a request and wait for its answer. After `wait` seconds the connection is closed."""
        if self._transport is None:
            raise ConnectionError("not connected")
        assert self._waiter is None, "one request at a time"
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await in_time(waiter, wait)
        except TimeoutError as error:
            self.close()
            raise ConnectionError(f"no answer in {wait} s") from error

    def close(self) -> None:
        """Close at once. A pending `ask` raises ConnectionError."""
        if self._transport is not None:
            self._transport.abort()


class BodyStream(asyncio.Protocol, ABC):
    """One request whose answer is read as it arrives. A subclass gets the body in `_read`.

    `on_open` gets the status and the head of the answer. `on_close` is called at the end.
    """

    def __init__(
        self, request: bytes, on_open: Callable[[int, bytes], None], on_close: Callable[[], None]
    ) -> None:
        self._request, self._on_open, self._on_close = request, on_open, on_close
        self._head: bytes | None = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        if self._head is not None:
            head, blank, data = (self._head + data).partition(b"\r\n\r\n")
            if not blank:
                self._head = head
                return
            self._head = None
            self._begin(head)
            self._on_open(int(head[9:12]), head)
        self._read(data)

    def _begin(self, head: bytes) -> None:
        """Called before `on_open`."""

    @abstractmethod
    def _read(self, data: bytes) -> None:
        """Take the next bytes of the body; there may be none."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self.transport = None
        self._on_close()

    def abort(self) -> None:
        """Drop the connection without a close."""
        if self.transport is not None:
            self.transport.abort()


# --- closed-loop load: each connection sends its next request after the answer to the last


class Pump(asyncio.Protocol):
    """Sends the next request after each answer, without a task or a future, which would cost time.

    `source` returns the next request, or None at the end. `sink` gets each answer. `ended` is set at that
    end, or when the connection is lost.
    """

    def __init__(self, source: Callable[[], bytes | None], sink: Callable[[Response], None]) -> None:
        self._source = source
        self._sink = sink
        self._answers = Answers()
        self._transport: asyncio.Transport | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast(asyncio.Transport, transport)

    def start(self) -> None:
        """Send the first request."""
        self._next()

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        answer = self._answers.feed(data)
        if answer is not None:
            self._sink(answer)
            self._next()

    def _next(self) -> None:
        request = self._source()
        if request is None or self._transport is None:
            self._end()
        else:
            self._transport.write(request)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._transport = None
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
        if self._transport is not None:
            self._transport.close()


async def pump(
    target: Target, connections: int, source: Callable[[], bytes | None], sink: Callable[[Response], None]
) -> None:
    """Run so many connections on one source until it is at its end and every answer has come."""
    pumps = [await target.connect(lambda: Pump(source, sink)) for _ in range(connections)]
    for one in pumps:
        one.start()
    await asyncio.gather(*(one.ended for one in pumps))
