"""A client of the WebSocket face that sends and reads plain frames."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.patience import PATIENCE_S

PONG_EVERY_S = 3.0
"""The server closes a connection that does not answer its ping within 10 s. It takes a pong at any time."""


class Frames:
    """One connection: what it sends are commands, what it gets are replies and pushes."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.pushes: list[dict[str, Any]] = []
        self.replies: dict[int, dict[str, Any]] = {}
        self._ids = itertools.count(1)
        self._read: deque[dict[str, Any]] = deque()
        self._ponging: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, url: str, *, connected: bool = True, **options: Any) -> Frames:
        """Connect to the service at an http URL; with `connected` also say so."""
        address = url.replace("http", "ws", 1) + "/v1/ws"
        # What the library would wait for by itself is the tests' to wait for.
        patient = {"open_timeout": PATIENCE_S, "ping_interval": None, **options}
        frames = cls(await connect(address, compression=None, max_size=None, **patient))
        if connected:
            await frames.ask("connect")
            frames._ponging = asyncio.create_task(frames._pong())
        return frames

    async def _pong(self) -> None:
        """Stay connected, however long the test does not read."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                await asyncio.sleep(PONG_EVERY_S)
                await self.send({})

    def _stop_ponging(self) -> None:
        if self._ponging is not None:
            self._ponging.cancel()

    async def close(self) -> None:
        self._stop_ponging()
        await self.connection.close()

    def drop(self) -> None:
        """End it without a word."""
        self._stop_ponging()
        self.connection.transport.abort()

    async def send(self, *commands: dict[str, Any]) -> None:
        """Commands in one message, a line for each."""
        await self.connection.send("\n".join(msgspec.json.encode(command).decode() for command in commands))

    async def next(self) -> dict[str, Any]:
        """The next reply or push. The server's pings are passed over."""
        # `wait_for` of Python 3.11 loses a cancellation that comes with what it waits for.
        async with asyncio.timeout(PATIENCE_S):
            while not self._read:
                text = await self.connection.recv()
                assert isinstance(text, str)
                self._read.extend(filter(None, map(msgspec.json.decode, text.split("\n"))))
        return self._read.popleft()

    async def rest(self) -> tuple[list[dict[str, Any]], int]:
        """All that still comes, and the code with which the server closes; 0 if it gives none."""
        said: list[dict[str, Any]] = []
        try:
            while True:
                said.append(await self.next())
        except ConnectionClosed as closed:
            return said, 0 if closed.rcvd is None else closed.rcvd.code

    async def reply(self, id_: int) -> dict[str, Any]:
        """The reply to a command. What comes before it is kept."""
        while id_ not in self.replies:
            self._keep(await self.next())
        return self.replies.pop(id_)

    def _keep(self, said: dict[str, Any]) -> None:
        if "push" in said:
            self.pushes.append(said["push"])
        elif "id" in said:
            self.replies[said["id"]] = said

    async def ask(self, method: str, /, **members: Any) -> dict[str, Any]:
        """The reply to one command, error included."""
        id_ = next(self._ids)
        await self.send({"id": id_, method: members})
        return await self.reply(id_)

    async def push(self, member: str = "pub") -> dict[str, Any]:
        """The next push with this member, kept or to come."""
        while True:
            for index, said in enumerate(self.pushes):
                if member in said:
                    return self.pushes.pop(index)
            self._keep(await self.next())

    async def offsets(self, count: int) -> list[int]:
        """The offsets of the next publications."""
        return [(await self.push())["pub"]["offset"] for _ in range(count)]
