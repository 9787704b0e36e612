"""One way to drive both faces of the client, so that each behaviour is tested once and holds for both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from types import TracebackType
from typing import Any, Protocol, Self

import httpx
from gapless import (
    AsyncClient,
    AsyncDelivery,
    AsyncStream,
    Client,
    Delivery,
    Stream,
)
from gapless._effects import AsyncEffects, Effects

from tests.patience import PATIENCE_S, http_client

Handler = Callable[[httpx.Request], httpx.Response]


@dataclass
class Time:
    """Virtual time: a wait takes none and is written down. `chance` is what the dice always show."""

    now: float = 1000.0
    chance: float = 0.5
    waits: list[float] = field(default_factory=list)
    keys: int = 0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float, closing: threading.Event | asyncio.Event | None) -> None:
        self.waits.append(seconds)
        self.now += seconds

    async def sleep_async(self, seconds: float, closing: asyncio.Event | None) -> None:
        self.sleep(seconds, closing)
        await asyncio.sleep(0)

    def draw(self) -> float:
        return self.chance

    def sync_effects(self) -> Effects:
        return Effects(self.clock, self.draw, self.new_key, self.sleep)

    def async_effects(self) -> AsyncEffects:
        return AsyncEffects(self.clock, self.draw, self.new_key, self.sleep_async)

    def new_key(self) -> str:
        self.keys += 1
        return f"key-{self.keys}"


class Face(Protocol):
    """A client, driven from plain test code."""

    time: Time

    def connect(
        self,
        url: str = "http://gapless.test",
        handler: Handler | None = None,
        *,
        real_time: bool = False,
        **options: Any,
    ) -> None:
        """Makes the client: for a real server, or answered by `handler` without a network."""

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """The result of a method that gives one."""

    def listing(self, name: str, *args: Any, **options: Any) -> list[Any]:
        """Everything a listing gives."""

    def open(self, name: str, *args: Any, **options: Any) -> Any:
        """A stream, not yet opened."""

    def enter(self, stream: Any) -> None:
        """Opens it as `with` does."""

    def take(self, stream: Any, count: int | None = None) -> list[Any]:
        """The next `count` items of a stream, all of them when None."""

    def settle(self, delivery: Any, verb: str, **options: Any) -> Any:
        """What became of a delivery settled by hand."""

    def block(self, delivery: Any, body: Callable[[Any], object] = lambda delivery: None) -> None:
        """Does something within a delivery's block, which may wait for other threads."""

    def close(self, stream: Any) -> None: ...


class SyncFace:
    def __init__(self) -> None:
        self.time = Time()
        self._closing: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in reversed(self._closing):
            one.close()

    def connect(
        self,
        url: str = "http://gapless.test",
        handler: Handler | None = None,
        *,
        real_time: bool = False,
        **options: Any,
    ) -> None:
        options.setdefault("timeout", PATIENCE_S)
        effects = Effects() if real_time else self.time.sync_effects()
        if handler is not None:
            options["http_client"] = httpx.Client(transport=httpx.MockTransport(handler), timeout=PATIENCE_S)
        self._client = Client(url, effects=effects, **options)
        self._closing += [self._client, *([options["http_client"]] if handler else [])]

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        return attrgetter(name)(self._client)(*args, **options)

    def listing(self, name: str, *args: Any, **options: Any) -> list[Any]:
        return list(attrgetter(name)(self._client)(*args, **options))

    def open(self, name: str, *args: Any, **options: Any) -> Stream[Any]:
        stream: Stream[Any] = attrgetter(name)(self._client)(*args, **options)
        self._closing.append(stream)
        return stream

    def enter(self, stream: Stream[Any]) -> None:
        stream.__enter__()

    def take(self, stream: Stream[Any], count: int | None = None) -> list[Any]:
        return list(stream) if count is None else [next(stream) for _ in range(count)]

    def settle(self, delivery: Delivery, verb: str, **options: Any) -> Any:
        return getattr(delivery, verb)(**options)

    def block(self, delivery: Delivery, body: Callable[[Delivery], object] = lambda delivery: None) -> None:
        with delivery:
            body(delivery)

    def close(self, stream: Stream[Any]) -> None:
        stream.close()


class AsyncFace:
    def __init__(self) -> None:
        self.time = Time()
        self._closing: list[Any] = []
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self._runner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in reversed(self._closing):
            self._runner.run(one.aclose())
        self._runner.__exit__(kind, error, trace)

    def connect(
        self,
        url: str = "http://gapless.test",
        handler: Handler | None = None,
        *,
        real_time: bool = False,
        **options: Any,
    ) -> None:
        options.setdefault("timeout", PATIENCE_S)
        effects = AsyncEffects() if real_time else self.time.async_effects()
        if handler is not None:
            options["http_client"] = http_client(transport=httpx.MockTransport(handler))
        self._client = AsyncClient(url, effects=effects, **options)
        self._closing += [self._client, *([options["http_client"]] if handler else [])]

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        return self._runner.run(attrgetter(name)(self._client)(*args, **options))

    def listing(self, name: str, *args: Any, **options: Any) -> list[Any]:
        async def collect() -> list[Any]:
            return [item async for item in attrgetter(name)(self._client)(*args, **options)]

        return self._runner.run(collect())

    def open(self, name: str, *args: Any, **options: Any) -> AsyncStream[Any]:
        stream: AsyncStream[Any] = attrgetter(name)(self._client)(*args, **options)
        self._closing.append(stream)
        return stream

    def enter(self, stream: AsyncStream[Any]) -> None:
        self._runner.run(stream.__aenter__())

    def take(self, stream: AsyncStream[Any], count: int | None = None) -> list[Any]:
        async def collect() -> list[Any]:
            if count is None:
                return [item async for item in stream]
            return [await anext(stream) for _ in range(count)]

        return self._runner.run(collect())

    def settle(self, delivery: AsyncDelivery, verb: str, **options: Any) -> Any:
        return self._runner.run(getattr(delivery, verb)(**options))

    def block(
        self, delivery: AsyncDelivery, body: Callable[[AsyncDelivery], object] = lambda delivery: None
    ) -> None:
        async def run() -> None:
            async with delivery:
                await asyncio.to_thread(body, delivery)

        self._runner.run(run())

    def close(self, stream: AsyncStream[Any]) -> None:
        self._runner.run(stream.aclose())
