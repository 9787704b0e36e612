"""Reads a stream on the calling thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Generic, Self, TypeVar

import httpx

from gapless._config import Config
from gapless._effects import Effects
from gapless._errors import GaplessError
from gapless._forks import Forkable
from gapless._retry import Break, Ended
from gapless._streams.stream import Streamed
from gapless._transport import Pool, build, head_of, leave_response, no_reply, reply_of

T = TypeVar("T")


class Stream(Forkable, Generic[T]):
    """An iterator over a stream. It reconnects after a lost connection, until it is closed.

    `with` opens it and returns once no message published from then on can be missed. One thread at a time may
    use it, except `close`. In a forked child it goes on where it is, over a connection of its own.
    """

    def __init__(self, stream: Streamed[T], pool: Pool, config: Config, effects: Effects) -> None:
        self._stream = stream
        self._pool = pool
        self._config = config
        self._effects = effects
        self._response: httpx.Response | None = None
        self._chunks: Iterator[bytes] | None = None
        self._not_before = effects.clock()
        self._closing = threading.Event()
        self._stepping = threading.Lock()
        self._complete = False
        self._torn = False
        """Whether another thread was reading when this process was forked: the state may be halfway."""
        super().__init__()

    def __repr__(self) -> str:
        state = "closed" if self._over else "open" if self._response else "not connected"
        return f"<{type(self).__name__} {state}, cursor={self.cursor}>"

    @property
    def cursor(self) -> int | None:
        """The id of the last message handed out, or the reader's place as the server gave it.

        Store it when that message is processed, and give it as `after` to the next subscription.
        """
        return self._stream.cursor

    def __enter__(self) -> Self:
        while not (self._stream.started or self._complete or self._over):
            self._refuse_torn()
            self._step()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        while not self._over:
            self._refuse_torn()
            item = self._stream.take()
            if item is not None:
                return item
            if self._complete:
                break
            self._step()
        raise StopIteration

    def close(self) -> None:
        """Ends the iteration, even while another thread waits in it. Closing twice is harmless."""
        self._closing.set()
        if self._stepping.acquire(blocking=False):
            try:
                self._drop()
            finally:
                self._stepping.release()
        else:
            # Another thread reads: its socket must only be shut down, not closed.
            self._hang_up()

    @property
    def _over(self) -> bool:
        return self._closing.is_set() or self._pool.closed

    def _step(self) -> None:
        """Makes one read. A connection that has ended is dropped, and the stream decides what follows."""
        with self._stepping:
            try:
                cause = self._advance()
                if cause is not None and not self._over:
                    self._drop()
                    now = self._effects.clock()
                    delay = self._stream.lost(cause, now)
                    self._complete = delay is None
                    self._not_before = now + (delay or 0.0)
            except BaseException as error:
                # An error of the service ends the stream; anything else, such as Ctrl-C, only the connection.
                if isinstance(error, GaplessError):
                    self._closing.set()
                self._drop()
                raise
            if self._over:
                self._drop()

    def _advance(self) -> Break | None:
        """Waits, opens or reads, as is due. Returns why the connection ended, or None while it goes on."""
        if self._stream.leaving:
            return Ended()
        try:
            if self._chunks is None:
                return self._open()
            chunk = next(self._chunks, None)
        except httpx.RequestError as error:
            return no_reply(error)
        if chunk is None:
            return Ended()
        self._stream.feed(chunk)
        return None

    def _open(self) -> Break | None:
        wait_seconds = self._not_before - self._effects.clock()
        if wait_seconds > 0:
            self._effects.sleep(wait_seconds, self._closing)
            if self._over:
                return None
        http = self._pool.http
        request = build(http, self._config, self._stream.request())
        self._response = response = http.send(request, stream=True)
        if response.status_code != 200:
            response.read()
            return reply_of(response)
        self._stream.opened(head_of(response), self._effects.clock())
        self._chunks = response.iter_bytes()
        return None

    def _anew(self, stream: Streamed[T]) -> Stream[T]:
        """Another one for this stream, over the same client."""
        return Stream(stream, self._pool, self._config, self._effects)

    def _refuse_torn(self) -> None:
        if self._torn:
            raise RuntimeError("another thread was reading this stream at the fork: open another one")

    def _after_fork(self) -> None:
        self._torn = self._torn or self._stepping.locked()
        closing, self._closing, self._stepping = self._closing, threading.Event(), threading.Lock()
        if closing.is_set():
            self._closing.set()
        response, chunks, self._response, self._chunks = self._response, self._chunks, None, None
        if response is not None:
            leave_response(response, chunks)

    def _drop(self) -> None:
        response, self._response, self._chunks = self._response, None, None
        if response is not None:
            with suppress(httpx.RequestError):
                response.close()

    def _hang_up(self) -> None:
        response = self._response
        network = response.extensions.get("network_stream") if response is not None else None
        if network is None:
            return
        with suppress(OSError):
            # The plain socket's method: that of a TLS socket would drop the session that the reader uses.
            socket.socket.shutdown(network.get_extra_info("socket"), socket.SHUT_RDWR)
