"""A TCP proxy that cuts every event stream and every WebSocket after its seventh message, or another one.

A streamed answer ends in the middle. A WebSocket ends without a close frame: after the seventh
publication, or some bytes later, in the middle of a frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from load.relay import PIECE_BYTES, Streams, forward, until_first_ends
from load.sse import MARK
from load.wire import Target

PER_CONNECTION = 7

PAGE_PATH = "/own-page"

PUBLICATION = b'"pub":{"id"'
"""A part of every publication over WebSocket, and of nothing else. The service neither masks nor compresses
its frames."""

BEYOND = (0, 1, 40)
"""How many bytes after the seventh publication are still forwarded, in turn for each WebSocket: none, a part
of the next frame's head, a part of its content."""

FindCut = Callable[[bytes], int | None]
"""Finds the place of the cut in the bytes that a server has sent; None until they reach it."""


class CuttingProxy:
    """Listens on its own port, and cuts connections after `per_connection` messages.

    `cuts` counts those that it cut. `page` is served at `PAGE_PATH`.
    """

    def __init__(self, upstream: Target, page: bytes = b"", per_connection: int = PER_CONNECTION) -> None:
        self.cuts = 0
        self._upstream = upstream
        self._page = page
        self._per_connection = per_connection
        self._streams = Streams()

    async def start(self) -> Target:
        """Listen. Returns the address."""
        return Target("127.0.0.1", await self._streams.listen(self._serve))

    async def stop(self) -> None:
        """Stop listening, and drop all connections."""
        await self._streams.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.split(b" ")[1] == PAGE_PATH.encode():
            size = b"%d" % len(self._page)
            kind = b"Content-Type: text/html\r\nConnection: close"
            writer.write(b"HTTP/1.1 200 OK\r\n%s\r\nContent-Length: %s\r\n\r\n%s" % (kind, size, self._page))
            await writer.drain()
        else:
            await self._forward(head, reader, writer)

    async def _forward(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        find_cut: FindCut = partial(end_of_message, number=self._per_connection)
        if b"\r\nupgrade: websocket\r\n" in head.lower():
            beyond = BEYOND[self.cuts % len(BEYOND)]
            find_cut = partial(cut_of_websocket, number=self._per_connection, beyond=beyond)
        elif b" /v1/ws/" in head.partition(b"\r\n")[0]:
            find_cut = partial(end_of_publication, number=self._per_connection)
        where = f"tcp://{self._upstream.host}:{self._upstream.port}"
        async with self._streams.connected_to(where) as (answers, upstream):
            upstream.write(head)
            stream = self._until_the_cut(answers, writer, find_cut)
            await until_first_ends(stream, forward(reader, upstream))

    async def _until_the_cut(
        self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter, find_cut: FindCut
    ) -> None:
        """Forward the server's bytes up to the cut."""
        seen, passed = b"", 0
        while data := await answers.read(PIECE_BYTES):
            seen += data
            end = find_cut(seen)
            writer.write(seen[passed:end])
            await writer.drain()
            passed = len(seen)
            if end is not None:
                self.cuts += 1
                return


def end_of_message(seen: bytes, number: int) -> int | None:
    """The end of the block of message `number` in a stream, counted from 1; None until it has come."""
    at = 0
    for _ in range(number):
        at = seen.find(MARK, at) + 1
        if at == 0:
            return None
    end = seen.find(b"\n\n", at)
    return end + 2 if end >= 0 else None


def end_of_publication(seen: bytes, number: int) -> int | None:
    """Where the line of publication `number`, counted from 1, ends in a stream that replaces a WebSocket."""
    at = 0
    for _ in range(number):
        at = seen.find(PUBLICATION, at) + 1
        if at == 0:
            return None
    return seen.find(b"\n", at) + 1 or None


def cut_of_websocket(seen: bytes, number: int, beyond: int) -> int | None:
    """The place `beyond` bytes after the frame of publication `number`, counted from 1; None until it has
    come. `seen` begins with the head of the answer."""
    head_end = seen.find(b"\r\n\r\n")
    if head_end < 0:
        return None
    at, counted = head_end + 4, 0
    while counted < number:
        found = frame_at(seen, at)
        if found is None:
            return None
        start, end = found
        counted += seen.count(PUBLICATION, start, end)
        at = end
    return at + beyond if at + beyond <= len(seen) else None


def frame_at(seen: bytes, at: int) -> tuple[int, int] | None:
    """The beginning and end of the content of a server's frame (RFC 6455, section 5.2); None until it is
    complete."""
    head = seen[at : at + 10]
    if len(head) < 2:
        return None
    more = {126: 2, 127: 8}.get(head[1], 0)  # how many bytes of the length follow
    if len(head) < 2 + more:
        return None
    size = int.from_bytes(head[2 : 2 + more], "big") if more else head[1]
    start = at + 2 + more
    return (start, start + size) if start + size <= len(seen) else None
