"""A small real HTTP server with one log in memory: what the load tools are tried against before the service.

It can be told to lose or double one message on the way to readers, and cuts streams at random.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from load.patterns import matches_any
from load.relay import listening
from load.wire import Target


class FakeService:
    """`spoil` is one of `lose`, `double` or nothing; it befalls the message with id `spoilt_id`."""

    def __init__(self, spoil: str = "", seed: int = 1, cuts: bool = True, spoilt_id: int = 20) -> None:
        self.log: list[dict[str, Any]] = []
        self.heads: dict[str, int] = {}
        self.spoil = spoil
        self._cuts = cuts
        self._chance = random.Random(seed)
        self._spoilt_id = spoilt_id
        self._grown = asyncio.Condition()
        self.target = Target("127.0.0.1", 0)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FakeService]:
        """Listen on a free port while the block runs."""
        async with listening(self._serve) as port:
            self.target = Target("127.0.0.1", port)
            yield self

    async def publish(self, channel: str, data: Any) -> dict[str, Any]:
        """Append one message."""
        async with self._grown:
            self.heads[channel] = self.heads.get(channel, 0) + 1
            message = {"id": len(self.log) + 1, "channel": channel, "seq": self.heads[channel], "data": data}
            self.log.append(message)
            self._grown.notify_all()
        return message

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            lines = head.split("\r\n")
            method, path, _ = lines[0].split(" ")
            headers = {n.lower(): v.strip() for n, _, v in (ln.partition(":") for ln in lines[1:] if ln)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            if path.startswith("/v1/subscribe"):
                await self._stream(path, headers, writer)
                return
            await self._answer(method, urlsplit(path).path, body, writer)

    async def _answer(self, method: str, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        channel = path.split("/")[3]
        if method == "POST":
            message = await self.publish(channel, msgspec.json.decode(body)["data"])
            status, said = "201 Created", msgspec.json.encode(message)
        else:
            lines = (msgspec.json.encode(m) for m in self.log if m["channel"] == channel)
            status, said = "200 OK", b"".join(line + b"\n" for line in lines)
        writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(said), said))

    async def _stream(self, path: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        query = parse_qs(urlsplit(path).query)
        after = (
            headers.get("last-event-id")
            or query.get("after", ["0" if "from" in query else str(len(self.log))])[0]
        )
        kind = b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked"
        writer.write(b"HTTP/1.1 200 OK\r\n" + kind + b"\r\n\r\n")
        start = str(int(after)).encode()
        self._chunk(writer, b'id: %s\nevent: ready\ndata: {"cursor":%s}\n\n' % (start, start))
        at = int(after)
        while not writer.is_closing():
            async with self._grown:
                while len(self.log) <= at:
                    await self._grown.wait()
            fit = [m for m in self.log[at:] if matches_any(query["channel"], m["channel"])]
            at = len(self.log)
            for message in self._spoiled(fit):
                self._chunk(writer, b"id: %d\ndata: %s\n\n" % (message["id"], msgspec.json.encode(message)))
                if self._cuts and self._chance.random() < 0.01:
                    return
            await writer.drain()

    def _spoiled(self, fit: list[dict[str, Any]]) -> list[dict[str, Any]]:
        at = next((n for n, message in enumerate(fit) if message["id"] == self._spoilt_id), None)
        if at is None or not self.spoil:
            return fit
        self.spoil, how = "", self.spoil
        if how == "lose":
            return fit[:at] + fit[at + 1 :]
        return [*fit[: at + 1], fit[at], *fit[at + 1 :]]

    @staticmethod
    def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))
