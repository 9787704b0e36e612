"""The ASGI application of one worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi_offline import FastAPIOffline
from starlette.types import Receive, Scope, Send

from app import openapi, pages, problem
from app.router import Router, request_id
from app.routes.table import ROUTES
from app.settings import Settings
from app.telemetry import REQUESTS, pass_on
from app.wiring import Service

Next = Callable[[Request], Awaitable[Response]]


class Application:
    """The service behind its faces. `service` exists between start-up and shut-down."""

    def __init__(self, settings: Settings) -> None:
        self.service: Service | None = None
        self._settings = settings
        self._router = Router(ROUTES, self._pages(), settings.namespace)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._router(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        self.service = Service(self._settings)
        self._router.bind(self.service.dependencies)
        await self.service.start()
        try:
            yield
        finally:
            await self.service.stop()
            pass_on()

    def _pages(self) -> FastAPI:
        app = FastAPIOffline(
            title=openapi.TITLE, lifespan=self._lifespan, redirect_slashes=False, **pages.OFFLINE
        )
        problem.install(app)
        pages.install(app)
        app.middleware("http")(_identify)
        return app


async def _identify(request: Request, call_next: Next) -> Response:
    """Gives every request an id, adds the id to the answer, and counts the request."""
    id_ = request_id()
    request.scope.setdefault("state", {})["request_id"] = id_
    try:
        response = await call_next(request)
    except Exception as error:  # noqa: BLE001 — the last resort: logged, and never shown
        response = problem.on_crash(request, error)
    response.headers["X-Request-Id"] = id_.decode()
    REQUESTS.labels("rest", response.status_code).inc()
    return response
