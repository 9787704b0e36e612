"""Requests to the service with JSON, over a pool of connections."""

from __future__ import annotations

from typing import Any

import msgspec

from load.waiting import PATIENCE_S
from load.wire import Connection, Target


class UnreachableError(Exception):
    """No answer, or a 5xx: the request may or may not have been carried out."""


class RefusedError(Exception):
    """A 4xx, in `status`: the request was not carried out."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status} {body!r}")
        self.status = status


class Api:
    """Calls one service. A connection has at most one call in flight."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._idle: list[Connection] = []

    async def call(
        self, method: str, path: str, body: Any = None, wait_s: float = PATIENCE_S, **headers: str
    ) -> Any:
        """The answer's JSON. Headers are named with underscores. Raises UnreachableError and RefusedError."""
        return msgspec.json.decode(await self.raw(method, path, body, wait_s, **headers) or b"null")

    async def raw(
        self, method: str, path: str, body: Any = None, wait_s: float = PATIENCE_S, **named: str
    ) -> bytes:
        """The answer's bytes. Otherwise like `call`."""
        content = b"" if body is None else msgspec.json.encode(body)
        headers = {name.replace("_", "-"): value for name, value in named.items()}
        try:
            connection = self._take() or await Connection.open(self._target)
            answer = await connection.ask(self._target.request(method, path, content, headers), wait_s)
        except OSError as error:
            raise UnreachableError(str(error)) from error
        if connection.usable:
            self._idle.append(connection)
        if answer.status >= 500:
            raise UnreachableError(f"{answer.status} {answer.body[:200]!r}")
        if answer.status >= 400:
            raise RefusedError(answer.status, answer.body[:500])
        return answer.body

    def _take(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()
