"""Small parts of the HTTP protocol that replace uvicorn's, to save memory for each connection."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any, Literal

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Event:
    """asyncio.Event without a queue of waiters unless it is needed (it takes about 800 bytes)."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self, is_set: bool = False) -> None:
        self._is_set = is_set
        self._waiters: list[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        self._is_set = False

    async def wait(self) -> Literal[True]:
        while not self._is_set:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            # Waiters that gave up are dropped here, so that waits with a timeout do not accumulate them.
            self._waiters = [*(w for w in self._waiters or () if not w.done()), waiter]
            await waiter
        return True


class Pipeline(list[Any]):
    """The part of a deque that uvicorn uses for waiting requests; it is empty on most connections."""

    __slots__ = ()

    def appendleft(self, item: Any) -> None:
        self.insert(0, item)


class Flow(FlowControl):
    """Flow control that knows the length of what was written and is not taken, other than shared bytes."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._is_writable_event = Event(is_set=True)  # type: ignore[assignment]
        self.written_bytes = 0
        self.holds_reading = False

    def hold_reading(self) -> None:
        """Nothing is read, whoever needs it, until `let_read`."""
        self.holds_reading = True
        self.pause_reading()

    def let_read(self, *, needed: bool) -> None:
        """Ends `hold_reading`. `needed`: nothing else has to be waited for."""
        if self.holds_reading:
            self.holds_reading = False
            if needed:
                self.resume_reading()

    def resume_reading(self) -> None:
        if self.read_paused and not self.holds_reading:
            super().resume_reading()


class Cycle(RequestResponseCycle):
    """A request and its answer."""

    flow: Flow

    async def receive(self) -> Any:
        """As the base class. If the whole body is here, there is nothing to wait for."""
        if (
            self.more_body
            or not self.message_event.is_set()
            or self.disconnected
            or self.response_complete
            or self.waiting_for_100_continue
        ):
            return await super().receive()
        self.flow.resume_reading()
        self.message_event.clear()
        body, self.body = bytes(self.body), bytearray()
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Any) -> None:
        size_bytes = len(message.get("body", b""))
        if self.flow.write_paused and not self.disconnected:
            await self._wait_behind(size_bytes)
        self.flow.written_bytes = size_bytes
        if self.waiting_for_100_continue and self.more_body:
            # Nobody knows whether the body comes: a client sends it after all, or goes on with a request.
            self.keep_alive = False
        if self.keep_alive or message.get("more_body") or not self.response_started:
            await super().send(message)
            return
        # The base class would close at once. The kernel answers bytes that come after it with a reset, which
        # takes the answer from a client that still sends: the rest of a body, or requests behind the last.
        self.keep_alive = True
        connection: Any = self.transport.get_protocol()
        connection.pipeline.clear()  # What was sent behind the last request is not carried out.
        await super().send(message)
        if not self.disconnected:
            connection.drain()

    async def _wait_behind(self, size_bytes: int) -> None:
        connection: Any = self.transport.get_protocol()
        connection.queue(size_bytes)
        try:
            await connection.taken()
        finally:
            connection.queue(-size_bytes)


class UnframedCycle(Cycle):
    """A request of HTTP/1.0, which has no chunks: an answer without a length ends with its connection."""

    _unframed = False

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            self._unframed = b"content-length" not in names
            if self._unframed:
                self.chunked_encoding = True  # The base class then adds no header that says so.
            await super().send(message)
            self.chunked_encoding = False
            return
        if self._unframed:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


@lru_cache(maxsize=1)
def framed(data: bytes) -> bytes:
    """A chunk of an answer with its frame. It is cached: the same chunk goes to many readers."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def has_body(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether a head says that a body follows."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
        for name, value in headers
    )
