"""A relay in front of a service that lets so many bytes of requests pass, and the rest when it is told.

What is under way behind it cannot be done before a test has looked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from load.relay import PIECE_BYTES, Streams, connected, forward, until_first_ends
from tests.patience import in_time


class Relay:
    """Passes connections to `upstream`, which may change, until its clients have sent `budget` bytes."""

    def __init__(self, streams: Streams, upstream: str, budget: int) -> None:
        self.upstream = upstream
        self.url = ""
        self._streams = streams
        self._left = budget
        self._held = asyncio.Event()
        self._open = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parts = urlsplit(self.upstream)
        assert parts.hostname is not None
        assert parts.port is not None
        async with connected(parts.hostname, parts.port) as (answers, requests):
            await until_first_ends(self._pass(reader, requests), forward(answers, writer))

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(PIECE_BYTES):
            self._left -= len(data)
            if self._left < 0 and not self._open:
                self._held.set()
                await asyncio.Event().wait()
            sink.write(data)
            await sink.drain()

    async def held(self) -> None:
        """Return once it holds something back."""
        await in_time(self._held.wait())

    async def let_go(self) -> None:
        """Cut what is held back, and hold back nothing more."""
        self._open = True
        await self._streams.drop()


@asynccontextmanager
async def holding(upstream: str, budget: int) -> AsyncIterator[Relay]:
    """The relay, listening while the block runs."""
    async with Streams() as streams:
        relay = Relay(streams, upstream, budget)
        relay.url = f"http://127.0.0.1:{await streams.listen(relay.serve)}"
        yield relay
