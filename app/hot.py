"""The two hot faces, publish and subscribe, as bare ASGI functions: what a framework does for each request
costs more there than the work itself. The same functions stand behind the routes in the OpenAPI document.
"""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from app import problem
from app.browsers.rules import is_preflight
from app.routes import deliveries
from app.routes.publish import publish_many, publish_one
from app.stream.consume import consume
from app.stream.sse import subscribe
from app.telemetry import REQUESTS
from app.wiring import Service
from subscriptions.domain.errors import Code, GaplessError

logger = logging.getLogger("gapless.http")

_CHANNELS: Final = "/v1/channels/"
_MESSAGES: Final = "/messages"
_SUBSCRIPTIONS: Final = "/v1/subscriptions/"
_PREFIX: Final = secrets.token_hex(6)
_numbers: Final = itertools.count(1)

Handler = Callable[[Service, Scope, Receive, Send], Awaitable[None]]

_ON_SUBSCRIPTIONS: Final[dict[str, Handler]] = {
    "pull": deliveries.pull,
    "ack": deliveries.ack,
    "nack": deliveries.nack,
    "extend": deliveries.extend,
}

_ALONE: Final[dict[str, tuple[Handler, str]]] = {
    "/v1/messages": (publish_many, "publish"),
    "/v1/transactions": (deliveries.transact, "transaction"),
    "/v1/ack": (deliveries.ack, "queue"),
    "/v1/nack": (deliveries.nack, "queue"),
    "/v1/extend": (deliveries.extend, "queue"),
}


def request_id() -> bytes:
    """A new id for the X-Request-Id of an answer, unique among all processes."""
    return f"{_PREFIX}-{next(_numbers):x}".encode()


class HotPath:
    """ASGI application: answers the hot requests itself and hands on the rest."""

    def __init__(self, app: ASGIApp, service: Callable[[], Service]) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if is_preflight(scope["method"], scope["headers"]):
            await _answer_preflight(send)
            return
        handler, face = _route(scope["method"], scope["path"])
        if handler is None:
            await self._app(scope, receive, send)
            return
        await _answer(handler, face, self._service(), scope, receive, send)


def _route(method: str, path: str) -> tuple[Handler | None, str]:
    if method == "POST":
        if path.startswith(_CHANNELS) and path.endswith(_MESSAGES):
            return publish_one, "publish"
        if path.startswith(_SUBSCRIPTIONS):
            return _ON_SUBSCRIPTIONS.get(path[path.rfind("/") + 1 :]), "queue"
        return _ALONE.get(path, (None, ""))
    if path.startswith(_SUBSCRIPTIONS) and path.endswith("/consume") and method in ("GET", "HEAD"):
        return consume, "consume"
    if path == "/v1/subscribe" and method in ("GET", "HEAD"):
        return subscribe, "sse"
    return None, ""


async def _answer_preflight(send: Send) -> None:
    """Whose origin may not use this service does not get here, and what it may do is said by the headers that
    `app.browsers` gave this answer."""
    REQUESTS.labels("preflight", 204).inc()
    await send({"type": "http.response.start", "status": 204, "headers": [(b"x-request-id", request_id())]})
    await send({"type": "http.response.body", "body": b""})


async def _answer(
    handler: Handler, face: str, service: Service, scope: Scope, receive: Receive, send: Send
) -> None:
    scope.setdefault("state", {})["request_id"] = request_id()
    try:
        await handler(service, scope, receive, send)
    except GaplessError as error:
        await refuse(error, face, scope, send)
    except ClientDisconnect:
        pass
    except Exception:
        logger.exception("unhandled error", extra={"request_id": scope["state"]["request_id"].decode()})
        detail = "the server failed; what happened is in its log"
        await refuse(GaplessError(Code.INTERNAL, detail), face, scope, send)


async def refuse(error: GaplessError, face: str, scope: Scope, send: Send) -> None:
    """Answer with a problem document."""
    status, headers, body = problem.render(error)
    headers.append((b"x-request-id", scope["state"]["request_id"]))
    REQUESTS.labels(face, status).inc()
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
