"""Closed-loop load: connections that ask again as soon as they are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from load.wire import Answers, Response, Target


class Pump(asyncio.Protocol):
    """Sends request after request as fast as they are answered: no task, no future, a call per answer.

    `source` gives the next request or nothing at the end; `sink` is told each status. `ended` is set
    when the source is dry or the connection lost.
    """

    def __init__(self, source: Callable[[], bytes | None], sink: Callable[[Response], None]) -> None:
        self._source = source
        self._sink = sink
        self._answers = Answers()
        self._transport: asyncio.Transport | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast(asyncio.Transport, transport)

    def start(self) -> None:
        """Send the first request."""
        self._next()

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        answer = self._answers.feed(data)
        if answer is not None:
            self._sink(answer)
            self._next()

    def _next(self) -> None:
        request = self._source()
        if request is None or self._transport is None:
            self._end()
        else:
            self._transport.write(request)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._transport = None
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
        if self._transport is not None:
            self._transport.close()


async def pump(
    target: Target, connections: int, source: Callable[[], bytes | None], sink: Callable[[Response], None]
) -> None:
    """Run that many pumps from one source until it is dry and every answer is in."""
    loop = asyncio.get_running_loop()
    pumps: list[Pump] = []
    for _ in range(connections):
        _, one = await loop.create_connection(lambda: Pump(source, sink), target.host, target.port)
        pumps.append(one)
    for one in pumps:
        one.start()
    await asyncio.gather(*(one.ended for one in pumps))
