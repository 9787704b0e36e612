"""The routes that hand out deliveries and take them back, for the OpenAPI document: as `app.routes.live`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Response

from app.routes import deliveries
from app.routes.live import Handled
from app.routes.parameters import Name
from app.schemas import answers, schema, takes
from app.stream.consume import DEFAULT_PREFETCH, MAX_PREFETCH, consume
from app.wiring import Service


def router(service: Callable[[], Service]) -> APIRouter:
    """The routes, over whatever service is running."""
    routes = APIRouter(tags=["deliveries"])
    _settlements(routes, service)

    @routes.post(
        "/v1/subscriptions/{name}/pull",
        responses=answers("What was leased; nothing when nothing came.", schema("Deliveries")),
        openapi_extra=takes("Pull", required=False),
    )
    async def pull(name: Name) -> Response:
        """Lease up to `max` messages, waiting up to `wait` seconds for the first."""
        return Handled(deliveries.pull, service())

    @routes.get("/v1/subscriptions/{name}/consume", responses=_STREAM)
    async def stream(
        name: Name,
        prefetch: Annotated[int, Query(ge=1, le=MAX_PREFETCH)] = DEFAULT_PREFETCH,
        heartbeat: Annotated[int, Query(ge=5, le=60)] = 15,
    ) -> Response:
        """Deliveries as server-sent events, at most `prefetch` of them unsettled. Acks go to `ack`; leases
        end with the stream."""
        return Handled(consume, service())

    @routes.post(
        "/v1/transactions",
        status_code=201,
        responses=answers("Committed.", schema("Committed"), 201),
        openapi_extra=takes("Transaction"),
    )
    async def transact(idempotency_key: Annotated[str | None, Header(max_length=255)] = None) -> Response:
        """Publish and ack, all of it or nothing: consume, transform, produce, exactly once."""
        return Handled(deliveries.transact, service())

    return routes


def _settlements(routes: APIRouter, service: Callable[[], Service]) -> None:
    results = answers("One result a receipt, in order.", schema("Results"))

    @routes.post("/v1/subscriptions/{name}/ack", responses=results, openapi_extra=takes("Ack"))
    async def ack(name: Name) -> Response:
        """Settle deliveries. Answered after the commit."""
        return Handled(deliveries.ack, service())

    @routes.post("/v1/subscriptions/{name}/nack", responses=results, openapi_extra=takes("Nack"))
    async def nack(name: Name) -> Response:
        """Give deliveries back: for later, or as dead letters."""
        return Handled(deliveries.nack, service())

    @routes.post("/v1/subscriptions/{name}/extend", responses=results, openapi_extra=takes("Extend"))
    async def extend(name: Name) -> Response:
        """Move deadlines: the new ones count from now."""
        return Handled(deliveries.extend, service())

    @routes.post("/v1/ack", responses=results, openapi_extra=takes("Ack"))
    async def ack_any() -> Response:
        """Settle deliveries of whatever subscriptions. Answered after the commit."""
        return Handled(deliveries.ack, service())

    @routes.post("/v1/nack", responses=results, openapi_extra=takes("Nack"))
    async def nack_any() -> Response:
        """Give deliveries of whatever subscriptions back: for later, or as dead letters."""
        return Handled(deliveries.nack, service())

    @routes.post("/v1/extend", responses=results, openapi_extra=takes("Extend"))
    async def extend_any() -> Response:
        """Move deadlines of deliveries of whatever subscriptions."""
        return Handled(deliveries.extend, service())


_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Events: delivery, goodbye.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
