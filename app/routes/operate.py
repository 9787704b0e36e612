"""Health, readiness and metrics."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Response

from app.telemetry import metrics
from app.wiring import Service


def router(service: Callable[[], Service]) -> APIRouter:
    """The routes, over whatever service is running."""
    routes = APIRouter(tags=["operating"])

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
