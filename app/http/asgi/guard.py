"""Keeps the rules of the server's own protocol under another server: which pages may use the service, the
limits of requests, the headers of every answer."""

from __future__ import annotations

import logging
from typing import Final
from urllib.parse import quote

from starlette._utils import get_route_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.http import limits
from app.http.asgi.connection import AsgiConnection
from app.http.browsers.rules import EVERY_ANSWER, Browsers
from app.http.limits import MAX_FIELDS, MAX_FIELDS_BYTES, MAX_TARGET_BYTES
from app.http.problem import Headers
from subscriptions.domain.errors import GaplessError

logger = logging.getLogger("gapless.http")

_EVERY_ANSWER: Final = [(name.encode(), value.encode()) for name, value in EVERY_ANSWER]


class Guard:
    """Passes requests and WebSockets on to the application, or refuses them."""

    def __init__(self, application: ASGIApp, browsers: Browsers, *, slow_reader_s: float) -> None:
        self._application = application
        self._browsers = browsers
        self._slow_reader_s = slow_reader_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
        target = _target(scope)
        # To the rules, an offer of a WebSocket is the GET that it is.
        method = scope.get("method", "GET").encode("latin-1")
        admission = self._browsers.admit(method, target, headers)
        refusal = _refusal(method, target, headers) or admission.refusal
        every_answer = [*_EVERY_ANSWER, *admission.headers]
        if refusal is not None:
            await _refuse(refusal, every_answer, scope, send)
        elif scope["type"] == "http":
            await self._pass_on(scope, receive, send, headers, every_answer)
        else:
            await self._application(scope, receive, send)

    async def _pass_on(
        self, scope: Scope, receive: Receive, send: Send, headers: Headers, every_answer: Headers
    ) -> None:
        connection = AsgiConnection(scope, receive, send, every_answer, self._slow_reader_s)
        # Offers of other protocols are ignored: what this server takes, it does not pass on as a request.
        passed = {
            **scope,
            "headers": [header for header in headers if header[0] != b"upgrade"],
            "extensions": {**(scope.get("extensions") or {}), "gapless": connection},
            "state": {**scope.get("state", {}), "through": True},
        }
        try:
            await self._application(passed, connection.receive, connection.send)
        finally:
            await connection.close()


def _refusal(method: bytes, target: bytes, headers: Headers) -> GaplessError | None:
    if method == b"CONNECT":
        return limits.no_proxy()
    if len(target) > MAX_TARGET_BYTES:
        return limits.target_too_long()
    if len(headers) > MAX_FIELDS or limits.fields_bytes(headers) > MAX_FIELDS_BYTES:
        return limits.too_many_fields()
    return None


def _target(scope: Scope) -> bytes:
    """The path and the query as they were sent, without the prefix under which the application runs."""
    raw, root = scope.get("raw_path"), scope.get("root_path", "").encode()
    path: bytes = quote(get_route_path(scope)).encode() if raw is None else raw.removeprefix(root)
    query: bytes = scope.get("query_string", b"")
    return path + b"?" + query if query else path


async def _refuse(error: GaplessError, every_answer: Headers, scope: Scope, send: Send) -> None:
    limits.refusals[error.code] += 1
    logger.debug("refused before routing: %s", error.detail, extra={"code": error.code.value})
    await deny(*limits.refusal(error, every_answer), scope, send)


async def deny(status: int, headers: Headers, body: bytes, scope: Scope, send: Send) -> None:
    """Answers instead of the application, an offer of a WebSocket too."""
    if not scope.get("http_version", "1.1").startswith("1."):
        headers = [header for header in headers if header[0] != b"connection"]
    kind = "http"
    if scope["type"] == "websocket":
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            await send({"type": "websocket.close"})  # The server makes it a 403.
            return
        kind = "websocket.http"
    start: Message = {"type": f"{kind}.response.start", "status": status, "headers": headers}
    await send(start)
    whole = b"" if scope.get("method") == "HEAD" else body
    await send({"type": f"{kind}.response.body", "body": whole})
