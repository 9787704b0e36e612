"""Helpers that leak, for the test of what finds leaks."""

from __future__ import annotations

import asyncio


async def leave_open(port: int) -> None:
    """Open a connection and leave it."""
    await asyncio.get_running_loop().create_connection(asyncio.Protocol, "127.0.0.1", port)


async def accept_and_forget() -> None:
    """Leave open what a server has accepted."""
    loop = asyncio.get_running_loop()
    accepted = asyncio.Event()

    class StaysOpen(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.set()

        def eof_received(self) -> bool:
            return True

    server = await loop.create_server(StaysOpen, "127.0.0.1", 0)
    mine, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname())
    await accepted.wait()
    mine.abort()
    server.close()
