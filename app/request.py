"""The request that a route's handler gets, and the answer that it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from app.http_parts import Cycle
from app.http_protocol import GaplessHttpProtocol

JSON: Final = "application/json"

Query = TypeVar("Query")


@dataclass(slots=True)
class Request(Generic[Query]):
    """A request to a route. Its path and parameters are checked; its body is not read yet.

    Only the router sets the request's namespace. `name` and `number` come from the path; if the route has
    none, they are empty and 0. `query` is the struct of the route's row.
    """

    namespace: str
    scope: Scope
    receive: Receive
    send: Send
    id: bytes
    name: str
    number: int
    query: Query

    @property
    def headers(self) -> Headers:
        """Its headers; names are case-insensitive."""
        return Headers(raw=self.scope["headers"])

    @property
    def connection(self) -> GaplessHttpProtocol:
        """The request's connection, for routes that write for a long time."""
        found: GaplessHttpProtocol = self.scope["extensions"]["gapless"]
        return found

    @property
    def cycle(self) -> Cycle | None:
        """The answer on that connection; None if the framework stands before it. Then all is written through
        `send`, because the framework may hold what was sent before."""
        found = getattr(self.send, "__self__", None)
        return found if isinstance(found, Cycle) else None


@dataclass(slots=True)
class Answer:
    """A whole answer. `headers` are added to those of every answer. `told` is called once the answer is sent,
    with False if that failed."""

    body: bytes = b""
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()
    media_type: bytes = JSON.encode()
    told: Callable[[bool], None] | None = None


NO_CONTENT: Final = Answer(status=204)

Plain = Request[None]
"""A request for routes without parameters."""
