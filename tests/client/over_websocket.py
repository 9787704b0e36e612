"""A blocking client whose publishes, subscriptions and consumers go over WebSocket, for tests of both ways.

What WebSocket does not have (idempotency keys, batches) goes over HTTP.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Self, TypeVar

import pytest
from gapless import (
    AsyncClient,
    AsyncConnection,
    AsyncConsumer,
    AsyncDelivery,
    AsyncStream,
    Client,
    RetryPolicy,
)
from gapless._effects import AsyncEffects, Effects

from tests.patience import PATIENCE_S

T = TypeVar("T")

Over = Callable[[AsyncClient], AbstractAsyncContextManager[AsyncClient | AsyncConnection]]
OVER = [pytest.param(nullcontext, id="sse"), pytest.param(AsyncClient.connect, id="websocket")]
"""What publishes and subscribes: the client itself, or a connection of it."""

OVER_HTTP = frozenset({"idempotency_key", "expected_last_seq", "delay", "deliver_at"})


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of this work, done there. It may be all that a consumer does."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(5 * PATIENCE_S)

    def call(self, work: Callable[[], object]) -> None:
        """Calls this there, soon."""
        self._loop.call_soon_threadsafe(work)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
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


class BlockingDelivery:
    """A delivery over WebSocket, driven from plain code."""

    def __init__(self, delivery: AsyncDelivery, loop: Loop) -> None:
        self._delivery = delivery
        self._run = loop.run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._delivery, name)

    def __enter__(self) -> Self:
        self._run(self._delivery.__aenter__())
        return self

    def __exit__(self, *raised: Any) -> None:
        self._run(self._delivery.__aexit__(*raised))

    def ack(self) -> Any:
        return self._run(self._delivery.ack())

    def release(self, **options: Any) -> Any:
        return self._run(self._delivery.release(**options))

    def nack(self, **options: Any) -> Any:
        return self._run(self._delivery.nack(**options))

    def extend(self, ack_wait: float | None = None) -> Any:
        return self._run(self._delivery.extend(ack_wait))


class BlockingConsumer:
    """A consumer over WebSocket, driven from plain code."""

    def __init__(self, consumer: AsyncConsumer, loop: Loop) -> None:
        self._consumer = consumer
        self._loop = loop

    def __enter__(self) -> Self:
        self._loop.run(self._consumer.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return BlockingDelivery(self._loop.run(self._consumer.__anext__()), self._loop)
        except StopAsyncIteration:
            raise StopIteration from None

    def work(self, handler: Callable[[Any], object], *, concurrency: int = 1) -> None:
        async def handle(delivery: AsyncDelivery) -> None:
            await asyncio.to_thread(handler, BlockingDelivery(delivery, self._loop))

        self._loop.run(self._consumer.work(handle, concurrency=concurrency))

    def stop(self) -> None:
        self._loop.call(self._consumer.stop)

    def close(self) -> None:
        self._loop.run(self._consumer.aclose())


class WebSocketClient(Client):
    """A client with a connection. Its reads and all that manages go over HTTP."""

    def __init__(
        self,
        base_url: str,
        *,
        token: str | Callable[[], str] | None = None,
        retry: RetryPolicy | None = None,
        effects: Effects | None = None,
    ) -> None:
        super().__init__(base_url, token=token, retry=retry, effects=effects)
        self._loop = Loop()
        chance = AsyncEffects() if effects is None else AsyncEffects(chance=effects.chance)
        asynchronous = AsyncClient(base_url, token=token, retry=retry, effects=chance)
        self._loop.run(self._open(asynchronous))

    async def _open(self, asynchronous: AsyncClient) -> None:
        self._asynchronous = asynchronous
        self._connection = self._asynchronous.connect()

    def publish(self, channel: str, data: Any, **options: Any) -> Any:
        if options.keys() & OVER_HTTP:
            return super().publish(channel, data, **options)
        return self._loop.run(self._connection.publish(channel, data, **options))

    def subscribe(self, *channels: str, **options: Any) -> Any:
        async def open_() -> BlockingStream:
            return BlockingStream(self._connection.subscribe(*channels, **options), self._loop)

        return self._loop.run(open_())

    def consume(self, subscription: str, **options: Any) -> Any:
        async def open_() -> BlockingConsumer:
            return BlockingConsumer(self._connection.consume(subscription, **options), self._loop)

        return self._loop.run(open_())

    def transaction(self, publish: Any = (), ack: Any = (), **options: Any) -> Any:
        acked = list(ack)
        committed = super().transaction(publish, acked, **options)
        for one in acked:
            if isinstance(one, BlockingDelivery):
                self._loop.call(one._delivery._settle_elsewhere)
        return committed

    def close(self) -> None:
        self._loop.run(self._asynchronous.aclose())
        self._loop.close()
        super().close()


MakeClient = Callable[..., Client]
