# Written by client/unasync.py from _async/calls.py: change that file, and run the script.
"""Carries out calls on the calling thread. Every part of the blocking face is built on it."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self, TypeVar

import httpx

from gapless._call import Call, Request, Slice, attempts_for
from gapless._config import Config, Token
from gapless._effects import Effects
from gapless._retry import Outcome, Reply, RetryPolicy
from gapless._transport import Pool, build, no_reply, reply_of

T = TypeVar("T")


class Calls:
    """A connection pool with credentials and a retry policy, and the loop that carries out a call over it."""

    def __init__(
        self,
        base_url: str | None = None,
        *,
        token: Token | None = None,
        timeout: float = 10.0,
        retry: RetryPolicy | None = None,
        http_client: httpx.Client | None = None,
        effects: Effects | None = None,
    ) -> None:
        self._config = Config.resolve(base_url, token, timeout, retry)
        self._pool = Pool(http_client, self._config.base_url)
        self._effects = effects or Effects()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._config.base_url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections, which ends open subscriptions. A caller's own `http_client` stays open."""
        self._pool.close()

    def _slices(self, call: Call[Slice[T]] | None) -> Iterator[T]:
        while call is not None:
            part = self._call(call)
            yield from part.items
            call = part.following

    def _call(self, call: Call[T], policy: RetryPolicy | None = None) -> T:
        attempts = attempts_for(call, self._config, self._effects, policy)
        while True:
            verdict = attempts.judge(self._send(call.request), self._effects.clock())
            if isinstance(verdict, Reply):
                return call.decode(verdict)
            self._effects.sleep(verdict, None)

    def _send(self, request: Request) -> Outcome:
        try:
            http = self._pool.http
            return reply_of(http.send(build(http, self._config, request)))
        except httpx.RequestError as error:
            return no_reply(error)


class Noun:
    """The calls about one kind of thing, carried out by a client."""

    def __init__(self, calls: Calls) -> None:
        self._call = calls._call
        self._slices = calls._slices
