"""Health, readiness and metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse

from app.telemetry import metrics
from app.wiring import Service

FRONT: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Gapless</title>
<h1>Gapless</h1>
<p>Ordered, durable delivery for chat and events.</p>
<ul>
<li><a href="/docs">/docs</a>: every route, to be tried here</li>
<li><a href="/docs/browser">/docs/browser</a>: a page that follows a channel</li>
<li><a href="/openapi.json">/openapi.json</a>, <a href="/asyncapi.json">/asyncapi.json</a>: for programs</li>
<li><a href="/healthz">/healthz</a>, <a href="/readyz">/readyz</a>, <a href="/metrics">/metrics</a>: for who
operates it</li>
</ul>
</html>
"""


def router(service: Callable[[], Service]) -> APIRouter:
    """The routes, over whatever service is running."""
    routes = APIRouter(tags=["operating"])

    @routes.get("/", include_in_schema=False)
    async def front() -> HTMLResponse:
        """For whoever opens the address in a browser."""
        return HTMLResponse(FRONT)

    @routes.get("/healthz")
    async def alive() -> dict[str, str]:
        """The process runs and answers."""
        return {"status": "alive"}

    @routes.get("/readyz")
    async def ready() -> dict[str, object]:
        """The schema is there and the database answers. Redis is told of, but not needed."""
        running = service()
        await running.ready()
        bus = running.bus
        return {"status": "ready", "redis": bus is not None and bus.connected}

    @routes.get("/metrics", response_class=Response)
    async def prometheus() -> Response:
        """Counters for Prometheus; of all workers of this host."""
        body, media_type = metrics()
        return Response(body, media_type=media_type)

    return routes
