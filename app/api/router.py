"""From a request to the handler of its row and to the answer; the framework's routes for the rows."""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

from prometheus_client import Counter
from starlette._utils import get_route_path
from starlette.datastructures import URLPath
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match, NoMatchFound, compile_path, replace_params
from starlette.types import Receive, Scope, Send

from app.api.route import Bound, Route
from app.http import problem
from app.http.answers import answer
from app.http.browsers.rules import is_preflight
from app.http.parameters import read_query
from app.http.principals import Principals
from app.http.problem import Headers
from app.http.request import Answer, Request
from app.metrics.registry import REQUESTS, count
from subscriptions.domain.errors import Code, GaplessError, internal, unavailable

logger = logging.getLogger("gapless.http")

_PREFIX: Final = secrets.token_hex(6).encode()
_numbers: Final = itertools.count(1)
_REMEMBERED: Final = 512
"""So many paths, each of at most 16 KiB."""


def request_id() -> bytes:
    """A new id for the X-Request-Id of an answer, unique among all processes."""
    return b"%b-%x" % (_PREFIX, next(_numbers))


Found = tuple[dict[str, Route], tuple[str, ...]]
"""The routes of a path by method, and the texts at its placeholders."""


class Table:
    """Finds the route of a request."""

    def __init__(self, routes: Iterable[Route]) -> None:
        # A tree of the parts between slashes; None leads on from a placeholder in braces.
        self._root: dict[Any, Any] = {}
        for route in routes:
            node = self._root
            for part in route.path.split("/")[1:]:
                node = node.setdefault(None if part.startswith("{") else part, {})
            for method in route.methods:
                assert node.setdefault("", {}).setdefault(method, route) is route, route.path

    def find(self, path: str) -> Found | None:
        """What a path has; None if it has no route."""
        node: Any = self._root
        places: tuple[str, ...] = ()
        for part in path.split("/")[1:]:
            below = node.get(part) if part else None
            if below is None:
                below = node.get(None)
                if below is None or not part:
                    return None
                places += (part,)
            node = below
        found = node.get("")
        return None if found is None else (found, places)


class Rows:
    """Answers requests to the rows of the table. Before `bind` and after `unbind`, each is `unavailable`."""

    def __init__(self, routes: Sequence[Route], principals: Principals) -> None:
        self._routes = routes
        # Clients repeat themselves.
        self.find = lru_cache(_REMEMBERED)(Table(routes).find)
        self._read_path = lru_cache(_REMEMBERED)(Route.read_path)
        self._principals = principals
        self._handlers: dict[Route, Bound] = {}

    def bind(self, dependencies: object) -> None:
        """Give the handlers what they ask for."""
        self._handlers = {route: route.bind(dependencies) for route in self._routes}

    def unbind(self) -> None:
        """The service stops."""
        self._handlers = {}

    def paths(self) -> list[BaseRoute]:
        """A route of the framework for each path of the table."""
        by_path: dict[str, list[Route]] = {}
        for route in self._routes:
            by_path.setdefault(route.path, []).append(route)
        return [PathRoute(path, routes, self) for path, routes in by_path.items()]

    async def answer(self, found: Found, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to a path that has rows."""
        state = scope.setdefault("state", {})
        id_ = state.get("request_id")
        if id_ is None:
            id_ = state["request_id"] = request_id()
        state["counted"] = True
        route = found[0].get(scope["method"])
        face = "rest" if route is None else route.face
        try:
            if route is None:
                raise GaplessError(Code.METHOD_NOT_ALLOWED, "the route does not have this method")
            principals = self._principals
            text = scope["query_string"]  # Nearly no request of a hot route has one.
            if b"ticket=" in text and (ticket := getattr(read_query(text, route.query), "ticket", "")):
                principal = await principals.with_ticket(ticket)
            else:
                needs, later = route.needs, route.needs.later
                found_now = principals.of(scope, needed=not needs.nothing, later=later)
                principal = found_now or await principals.find(scope, later=later)
            query = read_query(text, route.query) if text or route.query is not None else None
            name, number, marker = self._read_path(route, found[1])
            if principal.grants is not None or route.needs.operator:
                route.needs.require(principal, name)
            request = Request(principal, scope, receive, send, id_, name, number, query, marker)
            handler = self._handlers.get(route)
            if handler is None:
                raise unavailable("the service is not running")
            given = await handler(request)
            if given is not None:
                await _send(given, face, request)
        except GaplessError as error:
            allowed = ", ".join(sorted(found[0]))
            told = self._principals.refused(scope, error)
            await _refuse(told, face, scope, send, [(b"allow", allowed.encode())] if route is None else [])
        except ClientDisconnect:
            pass
        except Exception:
            logger.exception("unhandled error", extra={"request_id": id_.decode(), "path": scope["path"]})
            await _refuse(internal(), face, scope, send, [])


class PathRoute(BaseRoute):
    """All rows of one path. It answers every method: `Allow` and 405 are the rows' own."""

    def __init__(self, path: str, routes: Sequence[Route], rows: Rows) -> None:
        self.path = path
        self.methods = {method for route in routes for method in route.methods}
        self.name = routes[0].name
        self._names = {route.name for route in routes}
        self._routes = routes
        self._rows = rows
        _, self._template, self._convertors = compile_path(path)

    def __repr__(self) -> str:
        return f"PathRoute({self.path!r}, {sorted(self.methods)})"

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether the request's path, without the prefix under which the application runs, is this one."""
        if scope["type"] == "http":
            found = self._rows.find(get_route_path(scope))
            if found is not None and self._routes[0] in found[0].values():
                return Match.FULL, {}
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        found = self._rows.find(get_route_path(scope))
        assert found is not None, "`matches` found it"
        await self._rows.answer(found, scope, receive, send)

    def url_path_for(self, name: str, /, **path_params: Any) -> URLPath:
        """The path of the row whose operation has this name."""
        if name not in self._names or set(path_params) != set(self._convertors):
            raise NoMatchFound(name, path_params)
        path, _ = replace_params(self._template, self._convertors, path_params)
        return URLPath(path=path, protocol="http")


class PreflightRoute(BaseRoute):
    """CORS preflights of any path. A request of a forbidden origin does not get here. `app.http.browsers`
    adds the headers that say what is allowed."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether it is a preflight."""
        asked = scope["type"] == "http" and scope["method"] == "OPTIONS" and is_preflight(scope["headers"])
        return Match.FULL if asked else Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer it."""
        _answered("preflight", 204).inc()
        headers = [(b"x-request-id", request_id())]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def url_path_for(self, name: str, /, **path_params: Any) -> URLPath:
        """It has no name."""
        raise NoMatchFound(name, path_params)


@lru_cache(maxsize=256)
def _answered(face: str, status: int) -> Counter:
    return REQUESTS.labels(face, status)


async def _send(given: Answer, face: str, request: Request[Any]) -> None:
    count(_answered(face, given.status), 1)
    headers = [
        (b"content-type", given.media_type),
        (b"content-length", b"%d" % len(given.body)),
        (b"x-request-id", request.id),
        *given.headers,
    ]
    if given.status == 204:
        del headers[:2]
    sent = False
    try:
        await answer(request.send, given.status, headers, given.body)
        sent = True
    finally:
        if given.on_sent is not None:
            given.on_sent(sent)


async def _refuse(error: GaplessError, face: str, scope: Scope, send: Send, more: Headers) -> None:
    """Answer with a problem document."""
    status, headers, body = problem.render(error)
    headers += [(b"x-request-id", scope["state"]["request_id"]), *more]
    count(_answered(face, status), 1)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
