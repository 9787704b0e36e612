"""A blocking client whose publishes and subscriptions go over WebSocket, for tests of both ways.

What WebSocket does not have (idempotency keys, batches, the starts `last` and `since`) goes over HTTP.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Self, TypeVar

from gapless import AsyncClient, AsyncEffects, AsyncStream, Client, RetryPolicy, SyncEffects

T = TypeVar("T")

OVER_HTTP = frozenset({"idempotency_key", "expected_last_seq", "delay", "deliver_at", "last", "since"})


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of this work, done there."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


class BlockingStream:
    """A stream over WebSocket, driven from plain code."""

    def __init__(self, stream: AsyncStream[Any], loop: Loop) -> None:
        self._stream = stream
        self._run = loop.run

    @property
    def cursor(self) -> int | None:
        return self._stream.cursor

    def __enter__(self) -> Self:
        self._run(self._stream.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return self._run(anext(self._stream))
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        self._run(self._stream.aclose())


class WebSocketClient(Client):
    """A client with a connection. Its reads and all that manages go over HTTP."""

    def __init__(
        self,
        base_url: str,
        *,
        retry: RetryPolicy | None = None,
        effects: SyncEffects | None = None,
    ) -> None:
        super().__init__(base_url, retry=retry, effects=effects)
        self._loop = Loop()
        chance = AsyncEffects() if effects is None else AsyncEffects(chance=effects.chance)
        self._loop.run(self._open(base_url, retry, chance))

    async def _open(self, base_url: str, retry: RetryPolicy | None, effects: AsyncEffects) -> None:
        self._asynchronous = AsyncClient(base_url, retry=retry, effects=effects)
        self._connection = self._asynchronous.connect()

    def publish(self, channel: str, data: Any, **options: Any) -> Any:
        if options.keys() & OVER_HTTP:
            return super().publish(channel, data, **options)
        return self._loop.run(self._connection.publish(channel, data, **options))

    def subscribe(self, *channels: str, **options: Any) -> Any:
        if options.keys() & OVER_HTTP:
            return super().subscribe(*channels, **options)

        async def open_() -> BlockingStream:
            return BlockingStream(self._connection.subscribe(*channels, **options), self._loop)

        return self._loop.run(open_())

    def close(self) -> None:
        self._loop.run(self._asynchronous.aclose())
        self._loop.close()
        super().close()


MakeClient = Callable[..., Client]
