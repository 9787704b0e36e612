"""Reads a stream on asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Generic, Self, TypeVar

import httpx

from gapless._config import Config
from gapless._effects import AsyncEffects
from gapless._errors import GaplessError
from gapless._forks import OneProcess
from gapless._retry import Break, Ended
from gapless._streams.stream import Resumable, Streamed
from gapless._transport import AsyncPool, build, head_of, leave_response, no_reply, reply_of

T = TypeVar("T")


class _AsyncIteration(OneProcess, Generic[T]):
    """The iteration over a resumable sequence. Subclasses connect, receive and drop."""

    def __init__(self, resumed: Resumable[T], effects: AsyncEffects) -> None:
        self._resumed = resumed
        self._effects = effects
        self._not_before = effects.clock()
        self._closing = asyncio.Event()
        self._complete = False
        super().__init__()

    def __repr__(self) -> str:
        state = "closed" if self._over else "open" if self._connected else "not connected"
        return f"<{type(self).__name__} {state}, cursor={self.cursor}>"

    @property
    def cursor(self) -> int | None:
        """The id of the last message handed out, or the reader's place as the server gave it.

        Store it when that message is processed, and give it as `after` to the next subscription.
        """
        return self._resumed.cursor

    async def __aenter__(self) -> Self:
        self._use()
        while not (self._resumed.started or self._complete or self._over):
            await self._step()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        self._use()
        while not self._over:
            item = self._resumed.take()
            if item is not None:
                return item
            if self._complete:
                break
            await self._step()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Ends the iteration, even while another task waits in it. Closing twice is harmless."""
        if not self._foreign:
            self._closing.set()
            await self._drop()

    async def _step(self) -> None:
        """Makes one read. A connection that has ended is dropped, and the stream decides what follows."""
        try:
            cause = await self._advance()
            if cause is not None and not self._over:
                await self._drop()
                now = self._effects.clock()
                delay = self._resumed.lost(cause, now)
                self._complete = delay is None
                self._not_before = now + (delay or 0.0)
            if self._over:
                await self._drop()
        except GaplessError:
            await self.aclose()
            raise
        except BaseException:
            await self._interrupted()
            raise

    async def _advance(self) -> Break | None:
        """Waits, opens or reads, as is due. Returns why the connection ended, or None while it goes on."""
        if self._resumed.leaving:
            return Ended()
        if self._connected:
            return await self._receive()
        wait_seconds = self._not_before - self._effects.clock()
        if wait_seconds > 0:
            await self._effects.sleep(wait_seconds, self._closing)
            if self._over:
                return None
        return await self._connect()

    @property
    def _over(self) -> bool:
        return self._closing.is_set()

    @property
    def _connected(self) -> bool:
        """Whether something can be received."""
        raise NotImplementedError

    async def _connect(self) -> Break | None:
        """Opens a connection. Returns why that failed, if it did."""
        raise NotImplementedError

    async def _receive(self) -> Break | None:
        """Waits for what comes next. Returns why the connection ended, or None while it goes on."""
        raise NotImplementedError

    async def _drop(self) -> None:
        """Ends the connection, if there is one."""
        raise NotImplementedError

    async def _interrupted(self) -> None:
        """A wait was cancelled, or failed in a way that nobody expected."""
        await self._drop()


class AsyncStream(_AsyncIteration[T]):
    """An asynchronous iterator over a stream. It reconnects after a lost connection, until it is closed.

    `async with` opens it and returns once no message published from then on can be missed. Cancelling a wait
    for the next item loses nothing, but costs a reconnect; with `ack="auto"` a message that is on its way is
    lost. One task at a time may use it, except `aclose`.
    """

    def __init__(self, stream: Streamed[T], pool: AsyncPool, config: Config, effects: AsyncEffects) -> None:
        self._stream = stream
        self._pool = pool
        self._config = config
        self._response: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None
        super().__init__(stream, effects)

    @property
    def _over(self) -> bool:
        return self._closing.is_set() or self._pool.closed

    @property
    def _connected(self) -> bool:
        return self._chunks is not None

    async def _connect(self) -> Break | None:
        http = self._pool.http
        request = build(http, self._config, self._stream.request())
        try:
            self._response = response = await http.send(request, stream=True)
            if response.status_code != 200:
                await response.aread()
                return reply_of(response)
        except httpx.RequestError as error:
            return no_reply(error)
        self._stream.opened(head_of(response), self._effects.clock())
        self._chunks = response.aiter_bytes()
        return None

    async def _receive(self) -> Break | None:
        assert self._chunks is not None, "it is connected"
        try:
            chunk = await anext(self._chunks, None)
        except httpx.RequestError as error:
            return no_reply(error)
        if chunk is None:
            return Ended()
        self._stream.feed(chunk)
        return None

    def _after_fork(self) -> None:
        super()._after_fork()
        response, chunks, self._response, self._chunks = self._response, self._chunks, None, None
        if response is not None:
            leave_response(response, chunks)

    async def _drop(self) -> None:
        # A connection that was cancelled is in no known state; the cursor is all that is needed.
        response, self._response, self._chunks = self._response, None, None
        if response is not None:
            with suppress(httpx.RequestError):
                await response.aclose()
