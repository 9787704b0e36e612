"""The application, whatever server it runs under."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette._utils import get_route_path
from starlette.types import Message, Receive, Scope, Send

from app.api import openapi, pages
from app.api.route import Needs, Route
from app.api.router import PreflightRoute, Rows, request_id
from app.api.table import METRICS, ROUTES, WEBSOCKET
from app.faces.websocket.framing import LINES
from app.faces.websocket.sessions import SUBPROTOCOLS
from app.http import problem
from app.http.answers import answer
from app.http.asgi.guard import Guard, deny
from app.http.asgi.websocket import AsgiWebSocket
from app.http.browsers.rules import Browsers
from app.http.principals import Principals
from app.http.refusals import Refusals
from app.metrics.registry import REQUESTS, pass_on
from app.process.logs import configure_logging
from app.process.settings import Access, Settings
from app.process.standalone import Companion, on_stop
from app.process.wiring import Service
from subscriptions.domain.errors import Code, GaplessError, unavailable
from subscriptions.domain.principal import Principal

if TYPE_CHECKING:
    from app.http.tokens import Tokens


class GaplessApp(FastAPI):
    """The service behind its faces: every path of the table is one of its routes, and the pages are others.
    `service` exists between start-up and shut-down.

    Under the server of `app.process.worker`, the connection holds requests to the rules for browsers and to
    limits; under another server, `Guard` does. With `stands_alone`, start-up also does what `gapless serve`
    does before its workers, and streams end when the process is told to stop.

    A request to a hot row is answered before the framework looks at it, because the framework costs more than
    a publish. All others pass through the framework; so do those to hot rows once middleware was added.
    """

    def __init__(self, settings: Settings, *, stands_alone: bool = False) -> None:
        self.service: Service | None = None
        self._settings = settings
        self._stands_alone = stands_alone
        self._principals = principals = Principals(
            settings.namespace,
            _now_us,
            anywhere=settings.allow_anonymous,
            tokens=_tokens(settings),
            refusals=Refusals(settings.proxies),
        )
        self.browsers = Browsers(
            settings.allowed_hosts, settings.allowed_origins, any_host=lambda: principals.known_required
        )
        self._rows = Rows(_routes(settings.metrics), self._principals)
        self._guard = Guard(self._answer, self.browsers, slow_reader_s=settings.slow_reader_timeout)
        super().__init__(
            title=openapi.TITLE,
            lifespan=self._serve,
            redirect_slashes=False,
            docs_url=None,
            redoc_url=None,
            openapi_url=None if settings.documents is Access.OFF else "/openapi.json",
        )
        self.router.routes[:0] = [PreflightRoute(), *self._rows.paths()]
        problem.install(self)
        pages.install(self, documents=settings.documents is not Access.OFF)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
        elif "gapless" in (scope.get("extensions") or ()):
            await self._answer(scope, receive, send)
        else:
            await self._guard(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._open_websocket(scope, receive, send)
            return
        found = self._rows.find(get_route_path(scope))
        if (
            found is not None
            and (route := found[0].get(scope["method"])) is not None
            and (route.takes_connection or (route.hot and not self.user_middleware))
        ):
            await self._rows.answer(found, scope, receive, send)
            return
        identified = _Identified(scope, send)
        if get_route_path(scope) in pages.DOCUMENTS and self._settings.documents is Access.AUTO:
            try:
                _ = self._principals.of(scope) or await self._principals.find(scope)
            except GaplessError as error:
                status, headers, body = problem.render(self._principals.refused(scope, error))
                await answer(identified, status, headers, body)
                return
        if self.user_middleware:
            # It may hold what was sent before, so nothing is written beside it.
            scope["state"]["through"] = True
        try:
            await super().__call__(scope, receive, identified)
        except Exception:
            # The framework raises a defect again after `problem.on_crash` logged and answered it.
            if not identified.started:
                raise

    async def _open_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Opens one that another server passes on."""
        try:
            principal, address = await self._admit(scope)
        except GaplessError as error:
            status, headers, body = problem.render(self._principals.refused(scope, error))
            REQUESTS.labels("websocket", status).inc()
            await deny(status, [*headers, (b"x-request-id", request_id())], body, scope, send)
            return
        assert self.service is not None, "it was admitted"
        if (await receive())["type"] != "websocket.connect":
            return
        offered = scope.get("subprotocols", ())
        chosen = next((one for one in SUBPROTOCOLS if one in offered), None)
        headers = [(b"x-request-id", request_id())]
        await send({"type": "websocket.accept", "subprotocol": chosen, "headers": headers})
        REQUESTS.labels("websocket", 101).inc()
        connection = AsgiWebSocket(receive, send, self._settings.slow_reader_timeout)
        self.service.dependencies.sessions.open(connection, principal, address, LINES, subprotocol=chosen)
        await connection.run()

    async def _admit(self, scope: Scope) -> tuple[Principal, str]:
        """Who opens a WebSocket, and from which address. Raises why it is not opened, as the row of its path
        would."""
        if get_route_path(scope) != WEBSOCKET.path:
            raise GaplessError(Code.NOT_FOUND, "Not Found")
        principals = self._principals
        principal = principals.of(scope, later=True) or await principals.find(scope, later=True)
        WEBSOCKET.needs.require(principal, "")
        if self.service is None:
            raise unavailable("the service is not running")
        return principal, self.service.dependencies.sessions.admit(principal, scope)

    @asynccontextmanager
    async def _serve(self, _: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            settings = self._settings
            if self._stands_alone:
                settings = await self._prepare(stack)
            service = self.service = Service(settings, self._principals)
            self._rows.bind(service.dependencies)
            await service.start()
            try:
                yield
            finally:
                self._rows.unbind()
                self.service = None
                await service.stop()
                pass_on()

    async def _prepare(self, stack: AsyncExitStack) -> Settings:
        """The settings with the URLs of servers that are there, until the stack ends."""
        if not logging.getLogger().handlers:
            configure_logging(self._settings.log_level)
        companion = Companion()
        stack.push_async_callback(companion.ended)

        def stop() -> None:
            if self.service is None:
                companion.leave()
            else:
                self.service.dismiss()

        stack.enter_context(on_stop(stop))
        urls = await companion.urls()
        return self._settings.model_copy(
            update={"database_url": urls.database_url, "redis_url": urls.redis_url, "workers": 1}
        )

    def openapi(self) -> dict[str, Any]:
        """The document that the table of routes makes."""
        return openapi.document()


def _routes(metrics: Access) -> list[Route]:
    """The rows that are answered. Who may see the metrics is a setting."""
    rows = [row for row in ROUTES if row is not METRICS or metrics is not Access.OFF]
    return [replace(row, needs=Needs()) if row is METRICS and metrics is Access.OPEN else row for row in rows]


def _now_us() -> int:
    return time.time_ns() // 1000


def _tokens(settings: Settings) -> Tokens | None:
    """What checks JWTs; None: nothing does. Raises TokenKeyError."""
    if not settings.takes_tokens:
        return None
    # What they need takes a start as long as a tenth of the rest.
    from app.http.token_keys import TokenKeys, load_keys
    from app.http.tokens import TokenRules, Tokens

    own = () if settings.jwt_keys is None else load_keys(settings.jwt_keys)
    rules = TokenRules(
        settings.namespace, settings.jwt_issuer, settings.jwt_audience, settings.jwt_max_lifetime
    )
    return Tokens(TokenKeys(own, settings.jwks_url), rules, _now_us)


class _Identified:
    """Sends the answer to a request, with an id. It counts the answers that no row has counted."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._state = scope.setdefault("state", {})
        self._state["request_id"] = request_id()
        self._send = send
        self.started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            headers = message.setdefault("headers", [])
            if not any(name == b"x-request-id" for name, _ in headers):
                message["headers"] = [*headers, (b"x-request-id", self._state["request_id"])]
            if "counted" not in self._state:
                REQUESTS.labels("rest", message["status"]).inc()
        await self._send(message)
