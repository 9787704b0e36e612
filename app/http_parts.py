"""Small parts of the HTTP protocol that replace uvicorn's: they are paid for with each connection."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any, Literal

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from subscriptions.domain.errors import Code, GaplessError


class Event:
    """asyncio.Event without the queue of waiters that each of those keeps, used or not (some 800 bytes)."""

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
            # Those that gave up are left behind here, so that waiting with a time limit gathers none.
            self._waiters = [*(w for w in self._waiters or () if not w.done()), waiter]
            await waiter
        return True


class Pipeline(list[Any]):
    """The part of a deque that uvicorn uses, for requests that wait their turn; empty on most connections."""

    __slots__ = ()

    def appendleft(self, item: Any) -> None:
        self.insert(0, item)


class Flow(FlowControl):
    """Knows how long the last write was: all of it is held until the last byte of it is taken."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._is_writable_event = Event(is_set=True)  # type: ignore[assignment]
        self.written_bytes = 0


class Cycle(RequestResponseCycle):
    """A request and its answer."""

    flow: Flow

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        self.flow.written_bytes = len(message.get("body", b""))
        await super().send(message)


class UnframedCycle(Cycle):
    """A request of HTTP/1.0, which knows no chunks: an answer without a length ends with its connection."""

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
    """A chunk of an answer. The same chunk goes to many readers, one after the other."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def bad_request(detail: str) -> GaplessError:
    """What is answered to a request that is no HTTP as this server understands it."""
    return GaplessError(Code.INVALID_REQUEST, detail, status=400)
