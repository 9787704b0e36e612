"""A TCP proxy that cuts every event stream right after its seventh message, in the middle of the response."""

from __future__ import annotations

import asyncio
import contextlib

from load.sse import MARK
from load.wire import Target

PER_CONNECTION = 7

PAGE_PATH = "/own-page"


class CuttingProxy:
    """Listens on a port of its own. `cuts` counts the streams it ended; `page` is served at `PAGE_PATH`."""

    def __init__(self, upstream: Target, page: bytes = b"") -> None:
        self.cuts = 0
        self._upstream = upstream
        self._page = page
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> Target:
        """Listen; returns where."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return Target("127.0.0.1", self._server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        """Take no more connections and end those there are."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if head.split(b" ")[1] == PAGE_PATH.encode():
                size = b"%d" % len(self._page)
                kind = b"Content-Type: text/html\r\nConnection: close"
                writer.write(
                    b"HTTP/1.1 200 OK\r\n%s\r\nContent-Length: %s\r\n\r\n%s" % (kind, size, self._page)
                )
                await writer.drain()
            else:
                await self._forward(head, reader, writer)
        writer.close()
        self._writers.discard(writer)

    async def _forward(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, upstream = await asyncio.open_connection(self._upstream.host, self._upstream.port)
        upstream.write(head)
        stream = asyncio.create_task(self._until_the_seventh(answers, writer))
        gone = asyncio.create_task(reader.read(1))
        await asyncio.wait({stream, gone}, return_when=asyncio.FIRST_COMPLETED)
        for task in (stream, gone):
            task.cancel()
        await asyncio.gather(stream, gone, return_exceptions=True)
        upstream.transport.abort()

    async def _until_the_seventh(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes on up to the end of the seventh message's block; not one more."""
        seen, passed = b"", 0
        while data := await answers.read(65536):
            seen += data
            end = end_of_message(seen, PER_CONNECTION)
            writer.write(seen[passed:end])
            await writer.drain()
            passed = len(seen)
            if end is not None:
                self.cuts += 1
                return


def end_of_message(seen: bytes, number: int) -> int | None:
    """Where the block of the so-many-th message ends in a stream, or nothing while it is not there."""
    at = 0
    for _ in range(number):
        at = seen.find(MARK, at) + 1
        if at == 0:
            return None
    end = seen.find(b"\n\n", at)
    return end + 2 if end >= 0 else None
