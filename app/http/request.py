"""The request that a route's handler gets, and the answer that it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from starlette._utils import get_route_path
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from app.http.through import ServerSide, Through
from subscriptions.domain.principal import Principal

JSON: Final = "application/json"

Query = TypeVar("Query")


class Connection(ServerSide, Protocol):
    """The connection of a request, to handlers that answer for a long time: that of our own server, or
    `Through`."""

    def write(self, data: bytes) -> None:
        """Writes a part of the answer behind what waits."""

    def write_chunk(self, data: bytes) -> bool:
        """Writes a part of the answer at once and returns True. If bytes still wait, it only returns
        False."""


@dataclass(slots=True)
class Request(Generic[Query]):
    """A request to a route. Its path and parameters are checked; its body is not read yet.

    Only the router sets the principal. `name`, `number` and `marker` come from the path; if the route has
    none, they are empty and 0. `query` is the struct of the route's row.
    """

    principal: Principal
    scope: Scope
    receive: Receive
    send: Send
    id: bytes
    name: str
    number: int
    query: Query
    marker: str = ""
    _through: Through | None = field(default=None, init=False, repr=False)

    @property
    def namespace(self) -> str:
        """The namespace of who asks."""
        return self.principal.namespace

    @property
    def headers(self) -> Headers:
        """Its headers; names are case-insensitive."""
        return Headers(raw=self.scope["headers"])

    @property
    def path(self) -> str:
        """Its path, without the prefix under which the application runs."""
        return get_route_path(self.scope)

    @property
    def connection(self) -> Connection:
        """The request's connection, for routes that write for a long time."""
        found: Any = self.scope["extensions"]["gapless"]
        if not self.scope["state"].get("through"):
            server: Connection = found
            return server
        if self._through is None:
            self._through = Through(found, self.send)
        return self._through


@dataclass(slots=True)
class Answer:
    """A whole answer. `headers` are added to those of every answer. `on_sent` is called once the answer is
    sent, with False if that failed."""

    body: bytes = b""
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()
    media_type: bytes = JSON.encode()
    on_sent: Callable[[bool], None] | None = None


NO_CONTENT: Final = Answer(status=204)

Plain = Request[None]
"""A request for routes without parameters."""
