"""Server-sent events for load and tests: a full parser for checks, and a counter for measurements.

It shares no code with the client, because a check of the service must not depend on the client.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import cast

from load.wire import BodyStream, Dechunker, Target, field

MARK = b'\ndata: {"id":'
"""The beginning of the data line of every message. `ready` and `gap` do not have it."""

READ_SIZE = 256 * 1024

Event = tuple[bytes | None, bytes, bytes]
"""One event: its id or None, its data, and its name, which is empty for a message."""

_PLAIN = re.compile(rb"(?:(?<=\n\n)|\A)id: (\d+)\ndata: (.*)\n()\n")
"""A block with only a message. Its groups are an `Event`."""


class Blocks:
    """Cuts a decoded stream into whole blocks, each with its blank line. Line ends become LF."""

    __slots__ = ("rest",)

    def __init__(self) -> None:
        self.rest = b""
        """The beginning of the next block."""

    def feed(self, data: bytes) -> bytes:
        """The blocks that `data` completes, as one text; empty if there is none."""
        data = self.rest + data if self.rest else data
        held = b""
        if b"\r" in data:
            # A CR at the end may be the first half of a CRLF, so it waits for the next read.
            if data.endswith(b"\r"):
                data, held = data[:-1], b"\r"
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = data.rfind(b"\n\n") + 2
        if end == 1:
            self.rest = data + held
            return b""
        self.rest = data[end:] + held
        return data[:end]


class Events:
    """Cuts a decoded stream into events, as in the HTML standard. An event is complete at its blank line."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks = Blocks()

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes."""
        whole = self._blocks.feed(data)
        plain: list[Event] = _PLAIN.findall(whole)
        if len(plain) == whole.count(b"\n\n"):
            return plain  # four times as fast as the loop below
        return [event for block in split(whole) if (event := parse(block)) is not None]


def split(whole: bytes) -> list[bytes]:
    """Whole blocks one by one, without their blank lines."""
    return whole[:-2].split(b"\n\n") if whole else []


def fields(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Name and value of each line of a block; a comment has no name."""
    for line in filter(None, block.split(b"\n")):
        name, _, value = line.partition(b":")
        yield name, value.removeprefix(b" ")


def parse(block: bytes) -> Event | None:
    """The event of one block without its blank line; None if it has no data."""
    event_id: bytes | None = None
    name, data_lines = b"", []
    for key, value in fields(block):
        if key == b"data":
            data_lines.append(value)
        elif key == b"id":
            event_id = value
        elif key == b"event":
            name = value if value != b"message" else b""
    return (event_id, b"\n".join(data_lines), name) if data_lines else None


class Stream(BodyStream):
    """One subscription with full parsing. `on_events` gets the events of each read."""

    def __init__(
        self,
        request: bytes,
        on_open: Callable[[int, bytes], None],
        on_events: Callable[[list[Event]], None],
        on_close: Callable[[], None],
    ) -> None:
        super().__init__(request, on_open, on_close)
        self._on_events = on_events
        self._coding: Dechunker | None = None
        self._events = Events()

    def _begin(self, head: bytes) -> None:
        if b"chunked" in (field(head, b"transfer-encoding") or b"").lower():
            self._coding = Dechunker()

    def _read(self, data: bytes) -> None:
        body = self._coding.feed(data) if self._coding is not None else data
        if body and (events := self._events.feed(body)):
            self._on_events(events)
        if self._coding is not None and self._coding.done:
            self.abort()  # the answer is complete, but the server keeps the connection


async def follow(
    target: Target,
    path: str,
    on_events: Callable[[list[Event]], None],
    headers: dict[str, str],
    on_open: Callable[[int], None] = lambda status: None,
) -> bool:
    """Follow one connection until it ends. It is dropped if the status is not 200 or this is cancelled.
    Returns whether a connection was made."""
    closed = asyncio.Event()

    def opened(status: int, head: bytes) -> None:
        on_open(status)
        if status != 200:
            stream.abort()

    stream = Stream(target.request("GET", path, headers=headers), opened, on_events, closed.set)
    try:
        await target.connect(lambda: stream)
        await closed.wait()
    except OSError:
        return False
    finally:
        stream.abort()
    return True


class Counter(asyncio.BufferedProtocol):
    """One subscription that only counts its messages, by searching for their `mark`, which is fast.

    All counters of an event loop share one read buffer, since each read is counted before the next.
    `on_live` is called once, with all bytes up to the read with `live_mark`.
    """

    _buffer = bytearray(READ_SIZE)
    _view = memoryview(_buffer)

    __slots__ = (
        "_live_mark",
        "_mark",
        "_on_live",
        "_request",
        "_seen",
        "_tail",
        "count",
        "lost",
        "transport",
    )

    def __init__(
        self, request: bytes, live_mark: bytes, on_live: Callable[[bytes], None], mark: bytes = MARK
    ) -> None:
        self._request, self._live_mark, self._mark = request, live_mark, mark
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
        buffer, mark = self._buffer, self._mark
        # A mark may begin in the last bytes of one read and end in the first bytes of the next.
        edge = len(mark) - 1
        self.count += buffer.count(mark, 0, nbytes)
        self.count += (self._tail + buffer[:edge]).count(mark, 0, len(self._tail) + min(edge, nbytes))
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
