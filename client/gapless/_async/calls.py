"""Carries out calls on asyncio. Every part of the asyncio face is built on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self, TypeVar

import httpx

from gapless._call import Call, Request, Slice, attempts_for
from gapless._config import Config, Token
from gapless._effects import AsyncEffects
from gapless._retry import Outcome, Reply, RetryPolicy
from gapless._transport import AsyncPool, build, no_reply, reply_of

T = TypeVar("T")


class AsyncCalls:
    """A connection pool with credentials and a retry policy, and the loop that carries out a call over it."""

    def __init__(
        self,
        base_url: str | None = None,
        *,
        token: Token | None = None,
        timeout: float = 10.0,
        retry: RetryPolicy | None = None,
        http_client: httpx.AsyncClient | None = None,
        effects: AsyncEffects | None = None,
    ) -> None:
        self._config = Config.resolve(base_url, token, timeout, retry)
        self._pool = AsyncPool(http_client, self._config.base_url)
        self._effects = effects or AsyncEffects()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._config.base_url}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections, which ends open subscriptions. A caller's own `http_client` stays open."""
        await self._pool.aclose()

    async def _slices(self, call: Call[Slice[T]] | None) -> AsyncIterator[T]:
        while call is not None:
            part = await self._call(call)
            for item in part.items:
                yield item
            call = part.following

    async def _call(self, call: Call[T], policy: RetryPolicy | None = None) -> T:
        attempts = attempts_for(call, self._config, self._effects, policy)
        while True:
            verdict = attempts.judge(await self._send(call.request), self._effects.clock())
            if isinstance(verdict, Reply):
                return call.decode(verdict)
            await self._effects.sleep(verdict, None)

    async def _send(self, request: Request) -> Outcome:
        try:
            http = self._pool.http
            return reply_of(await http.send(build(http, self._config, request)))
        except httpx.RequestError as error:
            return no_reply(error)


class AsyncNoun:
    """The calls about one kind of thing, carried out by a client."""

    def __init__(self, calls: AsyncCalls) -> None:
        self._call = calls._call
        self._slices = calls._slices
