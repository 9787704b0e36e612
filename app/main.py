"""The ASGI application of one worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette._utils import get_route_path
from starlette.types import Message, Receive, Scope, Send

from app import openapi, pages, problem
from app.router import PreflightRoute, Rows, request_id
from app.routes.table import ROUTES
from app.settings import Settings
from app.telemetry import REQUESTS, pass_on
from app.wiring import Service


class GaplessApp(FastAPI):
    """The service behind its faces: every path of the table is one of its routes, and the pages are others.
    `service` exists between start-up and shut-down. Its server is that of `app.worker`, whose connections
    streams write to.

    A request to a hot row is answered before the framework looks at it, because the framework costs more than
    a publish. All others pass through the framework; so do those to hot rows once middleware was added, or
    under a prefix. Only rows that take their connection never do.
    """

    def __init__(self, settings: Settings) -> None:
        self.service: Service | None = None
        self._settings = settings
        self._rows = Rows(ROUTES, settings.namespace)
        super().__init__(
            title=openapi.TITLE, lifespan=self._serve, redirect_slashes=False, docs_url=None, redoc_url=None
        )
        self.router.routes[:0] = [PreflightRoute(), *self._rows.paths()]
        problem.install(self)
        pages.install(self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        found = self._rows.find(get_route_path(scope))
        if found is not None and (route := found[0].get(scope["method"])) is not None:
            at_once = route.hot and not self.user_middleware and not scope.get("root_path")
            if at_once or route.takes_connection:
                await self._rows.answer(found, scope, receive, send)
                return
        identified = _Identified(scope, send)
        try:
            await super().__call__(scope, receive, identified)
        except Exception:
            # The framework raises a defect again after `problem.on_crash` logged and answered it.
            if not identified.started:
                raise

    @asynccontextmanager
    async def _serve(self, _: FastAPI) -> AsyncIterator[None]:
        self.service = Service(self._settings)
        self._rows.bind(self.service.dependencies)
        await self.service.start()
        try:
            yield
        finally:
            self._rows.unbind()
            await self.service.stop()
            pass_on()

    def openapi(self) -> dict[str, Any]:
        """The document that the table of routes makes."""
        return openapi.document()


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
