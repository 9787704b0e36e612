"""A foreign web server: the attacking page, the chat page, and their reports."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from load.relay import Streams, forward, until_first_ends
from load.wire import Target, field

HERE = Path(__file__).resolve().parent
PAGES = {"/attack": "attack.html", "/chat": "chat.html"}
MAX_BYTES = 1024 * 1024


class Site:
    """Listens on a free port and answers for every host name. Pages report to `/report`."""

    def __init__(self) -> None:
        self.reports: asyncio.Queue[bytes] = asyncio.Queue()
        self.port = 0
        self.served: list[str] = []
        self.rebinding: Rebinding | None = None
        self._streams = Streams()

    async def start(self) -> None:
        """Listen."""
        self.port = await self._streams.listen(self._serve)

    async def stop(self) -> None:
        """Accept no more connections, and end the open ones."""
        await self._streams.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(field(head, b"content-length") or 0)
        body = await reader.readexactly(min(length, MAX_BYTES))
        writer.write(self._answer(head.split(b" ")[1].decode("latin-1"), body))
        await writer.drain()

    def _answer(self, target: str, body: bytes) -> bytes:
        url = urlsplit(target)
        self.served.append(url.path)
        if url.path in PAGES:
            return _page((HERE / PAGES[url.path]).read_bytes())
        if url.path == "/sandbox":
            frame = f'<iframe sandbox="allow-scripts allow-forms allow-popups" src="/attack?{url.query}">'
            return _page(f"<!doctype html>{frame}".encode())
        if url.path == "/lead":
            to = parse_qs(url.query)["to"][0]
            return f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode()
        if url.path == "/link":
            to = parse_qs(url.query)["to"][0]
            return _page(f"<!doctype html><script>location.href = {to!r};</script>".encode())
        if url.path == "/report":
            self.reports.put_nowait(body)
        elif url.path == "/rebind" and self.rebinding is not None:
            self.rebinding.turn()
        return b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"


class Rebinding:
    """A port that leads to the site first, and to the service after `turn`. To the browser, the site's name
    then has another address."""

    def __init__(self, site: Site, service: Target) -> None:
        self.port = 0
        self._site = site
        self._service = service
        self._to = Target("127.0.0.1", site.port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._streams = Streams()

    async def start(self) -> None:
        """Listen."""
        self.port = await self._streams.listen(self._serve)
        self._site.rebinding = self

    def turn(self) -> None:
        """Lead to the service from now on, and end connections to the site."""
        self._to = self._service
        for writer in self._writers:
            writer.transport.abort()

    async def stop(self) -> None:
        """Accept no more connections, and end the open ones."""
        await self._streams.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._streams.connected_to(f"tcp://{self._to.host}:{self._to.port}") as (
            answers,
            upstream,
        ):
            pair = {writer, upstream}
            self._writers |= pair
            try:
                await until_first_ends(forward(reader, upstream), forward(answers, writer))
            finally:
                self._writers -= pair


def _page(content: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    return head % len(content) + content
