"""A server that webhooks are posted to: it answers as a test says and keeps what it was sent."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from app.faces.webhooks.sender import Target
from load.relay import listening
from tests.patience import eventually

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def reply(status: str, *headers: str, body: bytes = b"") -> Answer:
    """An ordinary answer."""
    head = "\r\n".join([f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""])

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head.encode() + body)

    return answer


async def silence(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """No answer until the client has left."""
    await reader.read()


@dataclass
class Hook:
    """A server that answers as told and keeps what it was sent."""

    answer: Answer
    tls: ssl.SSLContext | None = None
    port: int = 0
    connections: int = 0
    left: int = 0
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    def target(self, host: str = "127.0.0.1", path: str = "/hook?a=b") -> Target:
        return Target(f"{'https' if self.tls else 'http'}://{host}:{self.port}{path}", SECRET)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()[:-1]
                headers = dict(line.split(": ", 1) for line in lines)
                self.requests.append(
                    (first, headers, await reader.readexactly(int(headers["content-length"])))
                )
                await self.answer(reader, writer)
                await writer.drain()
        self.left += 1


@asynccontextmanager
async def hook(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Hook]:
    made = Hook(answer, tls)
    async with listening(made.serve, tls=tls) as made.port:
        yield made
        await eventually(lambda: made.left == made.connections)
