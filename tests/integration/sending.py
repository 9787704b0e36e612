"""What tests of the sender of webhooks are made of: names, an internet and time-outs of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import httpcore


class Names:
    """A resolver of our own: each name's answers in turn, the last one for ever."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self.asked: list[str] = []
        self._answers = answers

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        answers = self._answers[host.partition(".")[0]]
        return answers.pop(0) if len(answers) > 1 else answers[0]


class Internet(httpcore.AsyncNetworkBackend):
    """Leads public addresses to loopback, as no test may reach the real ones; says whom it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        self.asked.append(host)
        return await httpcore.AnyIOBackend().connect_tcp("127.0.0.1", port, timeout)


class TimeOuts:
    """Those of the sender that are running, by their seconds. A test ends them once the other side has
    misbehaved, so that it does not matter how long anything takes."""

    def __init__(self) -> None:
        self.running: list[tuple[float | None, asyncio.Timeout]] = []
        self._begin = asyncio.timeout

    @asynccontextmanager
    async def begin(self, seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
        """In place of `asyncio.timeout`."""
        async with self._begin(seconds) as timeout:
            self.running.append((seconds, timeout))
            try:
                yield timeout
            finally:
                self.running.remove((seconds, timeout))

    def are(self, *seconds: float) -> bool:
        """Whether just these run."""
        return [each for each, _ in self.running] == list(seconds)

    def end(self, seconds: float) -> None:
        """As if that many seconds had passed, for all that wait so long and no longer."""
        for each, timeout in self.running:
            if each == seconds:
                timeout.reschedule(0.0)


async def drip(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, what: bytes
) -> AsyncIterator[None]:
    """`what` again and again, each time soon enough to seem alive, until the client has left."""
    left = asyncio.ensure_future(reader.read())
    while not left.done():
        writer.write(what)
        await writer.drain()
        yield
        await asyncio.wait([left], timeout=0.02)
