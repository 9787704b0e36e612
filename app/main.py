"""The ASGI application of one worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi_offline import FastAPIOffline
from starlette.responses import FileResponse
from starlette.types import Receive, Scope, Send

from app import hot, openapi, problem
from app.program import CHECKOUT
from app.routes import (
    channels,
    consuming,
    dead_letters,
    definitions,
    history,
    live,
    operate,
    policies,
    scheduled,
    subscriptions,
)
from app.settings import Settings
from app.telemetry import REQUESTS
from app.wiring import Service

_BROWSER_PAGE = CHECKOUT / "docs" / "browser.html"

Next = Callable[[Request], Awaitable[Response]]


class Application:
    """The service behind its faces. `service` exists between start-up and shut-down."""

    def __init__(self, settings: Settings) -> None:
        self.service: Service | None = None
        self._settings = settings
        self._asgi = hot.HotPath(self._build(), self._running)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._asgi(scope, receive, send)

    def _running(self) -> Service:
        assert self.service is not None, "requests come after start-up"
        return self.service

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        self.service = Service(self._settings)
        await self.service.start()
        try:
            yield
        finally:
            await self.service.stop()

    def _build(self) -> FastAPI:
        app = FastAPIOffline(
            title="Gapless",
            version=openapi.VERSION,
            description="Ordered, durable delivery for chat and events.",
            lifespan=self._lifespan,
            redirect_slashes=False,
        )
        problem.install(app)
        openapi.install(app)
        for routes in (
            live,
            history,
            channels,
            subscriptions,
            consuming,
            dead_letters,
            policies,
            definitions,
            scheduled,
            operate,
        ):
            app.include_router(routes.router(self._running))
        app.middleware("http")(_identify)

        @app.get("/docs/browser", include_in_schema=False)
        async def browser() -> FileResponse:
            return FileResponse(_BROWSER_PAGE, media_type="text/html")

        @app.get("/asyncapi.json", include_in_schema=False)
        async def asyncapi() -> dict[str, Any]:
            return openapi.ASYNCAPI

        return app


async def _identify(request: Request, call_next: Next) -> Response:
    """Give every request an id, say it in the answer, and count."""
    request_id = hot.request_id()
    request.scope.setdefault("state", {})["request_id"] = request_id
    try:
        response = await call_next(request)
    except Exception as error:  # noqa: BLE001 — the last resort: logged, and never shown
        response = problem.on_crash(request, error)
    response.headers["X-Request-Id"] = request_id.decode()
    REQUESTS.labels("rest", response.status_code).inc()
    return response
