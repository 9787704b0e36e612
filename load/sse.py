"""Server-sent events for load: a full parser for runs that check, and a counter for runs that measure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, cast

from load.wire import Dechunker, field

MARK = b"\nid:"
"""Every delivered message has an id line, on the service and on its peers; JSON on one line has none."""

READ_SIZE = 256 * 1024


class Event(NamedTuple):
    """One dispatched event. `id` is absent when the block had no id line."""

    id: bytes | None
    name: bytes
    data: bytes


class Events:
    """Cuts a decoded stream into events, as the HTML standard says; an event counts at its blank line."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes."""
        data = self._rest + data if self._rest else data
        held = b""
        if b"\r" in data:
            # A CR at the end may be half of a CRLF: it waits for what follows.
            if data.endswith(b"\r"):
                data, held = data[:-1], b"\r"
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        blocks = data.split(b"\n\n")
        self._rest = blocks.pop() + held
        return [event for block in blocks if (event := parse(block)) is not None]


def parse(block: bytes) -> Event | None:
    """The event of one block without its blank line, or nothing when it carries no data."""
    if block.startswith(b"id: "):
        head, mark, data = block.partition(b"\ndata: ")
        if mark and b"\n" not in data and b"\n" not in head:
            return Event(head[4:], b"message", data)
    event_id: bytes | None = None
    name, data_lines = b"message", []
    for line in block.split(b"\n"):
        key, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if key == b"data":
            data_lines.append(value)
        elif key == b"id":
            event_id = value
        elif key == b"event":
            name = value
    return Event(event_id, name, b"\n".join(data_lines)) if data_lines else None


class Stream(asyncio.Protocol):
    """One subscription connection with full parsing.

    `on_open` is told the status of the answer, `on_events` the events of each read, `on_close` the end.
    """

    def __init__(
        self,
        request: bytes,
        on_open: Callable[[int, bytes], None],
        on_events: Callable[[list[Event]], None],
        on_close: Callable[[], None],
    ) -> None:
        self._request = request
        self._on_open, self._on_events, self._on_close = on_open, on_events, on_close
        self._head = b""
        self._open = False
        self._coding: Dechunker | None = None
        self._events = Events()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        if not self._open:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            head, data = self._head[:end], self._head[end + 4 :]
            self._open, self._head = True, b""
            if b"chunked" in (field(head, b"transfer-encoding") or b"").lower():
                self._coding = Dechunker()
            self._on_open(int(head[9:12]), head)
        body = self._coding.feed(data) if self._coding is not None else data
        if body and (events := self._events.feed(body)):
            self._on_events(events)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self.transport = None
        self._on_close()

    def abort(self) -> None:
        """Drop the connection without a goodbye."""
        if self.transport is not None:
            self.transport.abort()


class Counter(asyncio.BufferedProtocol):
    """One subscription that only counts its messages, at the speed of a byte search.

    All counters of an event loop share one read buffer, since each read is counted before the next.
    `on_live` is called once, when `live_mark` has been seen.
    """

    _buffer = bytearray(READ_SIZE)
    _view = memoryview(_buffer)

    __slots__ = ("_live_mark", "_on_live", "_request", "_seen", "_tail", "count", "lost", "transport")

    def __init__(self, request: bytes, live_mark: bytes, on_live: Callable[[bytes], None]) -> None:
        self._request, self._live_mark = request, live_mark
        self._on_live: Callable[[bytes], None] | None = on_live
        self._seen = b""
        self._tail = b""
        self.count = 0
        self.lost = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._request)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by the event loop."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the event loop."""
        buffer = self._buffer
        # A mark that lies across two reads is in the last bytes of the one and the first of the other.
        edge = len(MARK) - 1
        self.count += buffer.count(MARK, 0, nbytes)
        self.count += (self._tail + buffer[:edge]).count(MARK, 0, len(self._tail) + min(edge, nbytes))
        self._tail = bytes((self._tail + buffer[max(0, nbytes - edge) : nbytes])[-edge:])
        if self._on_live is not None:
            self._watch(bytes(buffer[:nbytes]))

    def _watch(self, data: bytes) -> None:
        self._seen += data
        if self._live_mark in self._seen and self._on_live is not None:
            tell, self._on_live = self._on_live, None
            seen, self._seen = self._seen, b""
            tell(seen)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self.lost = True
        self.transport = None

    def close(self) -> None:
        """Drop the connection."""
        if self.transport is not None:
            self.transport.abort()
