"""A TCP proxy that can freeze: connections stay open, nothing moves, nobody is told."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from load.relay import PIECE_BYTES, Streams, until_first_ends


class FreezingProxy:
    """`url` leads through it. While `frozen`, not a byte is read from either side."""

    def __init__(self, target_url: str) -> None:
        self._target_url = target_url
        self._streams = Streams()
        self._moving = asyncio.Event()
        self._moving.set()
        self.url = ""

    async def start(self, port: int = 0) -> None:
        self._streams = Streams()
        port = await self._streams.listen(self._serve, port)
        target = urlsplit(self._target_url)
        self.url = target._replace(scheme="redis", netloc=f"127.0.0.1:{port}", path="").geturl()

    def freeze(self) -> None:
        self._moving.clear()

    def thaw(self) -> None:
        self._moving.set()

    async def stop(self) -> None:
        await self._streams.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._streams.connected_to(self._target_url) as (there, back):
            await until_first_ends(self._pump(reader, back), self._pump(there, writer))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while True:
            await self._moving.wait()
            data = await source.read(PIECE_BYTES)
            await self._moving.wait()
            if not data:
                return
            sink.write(data)
            await sink.drain()
