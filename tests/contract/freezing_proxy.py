"""A TCP proxy that can freeze: connections stay open, nothing moves, nobody is told."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from urllib.parse import urlsplit


class FreezingProxy:
    """`url` leads through it. While `frozen`, not a byte is read from either side."""

    def __init__(self, target_url: str) -> None:
        self._target = urlsplit(target_url)
        self._server: asyncio.Server | None = None
        self._moving = asyncio.Event()
        self._moving.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        port = self._server.sockets[0].getsockname()[1]
        self.url = self._target._replace(scheme="redis", netloc=f"127.0.0.1:{port}", path="").geturl()

    def freeze(self) -> None:
        self._moving.clear()

    def thaw(self) -> None:
        self._moving.set()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._target.scheme == "unix":
            there, back = await asyncio.open_unix_connection(self._target.path)
        else:
            there, back = await asyncio.open_connection(self._target.hostname, self._target.port)
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                while True:
                    await self._moving.wait()
                    data = await source.read(65536)
                    await self._moving.wait()
                    if not data:
                        return
                    sink.write(data)
                    await sink.drain()
        finally:
            sink.close()
