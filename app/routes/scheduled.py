"""Messages that are to be published later: looked at, cancelled, published now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from app.routes.bodies import JSON
from app.routes.parameters import Digits, IdCursor, Limit, only
from app.schemas import answers, schema
from app.wire.deliveries import encode_page, encode_scheduled
from app.wire.encode import encode_positions
from app.wiring import Service
from subscriptions.domain.model import MAX_ID
from subscriptions.domain.names import check_channel

ScheduledId = Annotated[int, Path(ge=0, le=MAX_ID, description="The scheduled_id."), Digits]


def router(service: Callable[[], Service]) -> APIRouter:
    """The routes, over whatever service is running."""
    routes = APIRouter(tags=["scheduled"])

    @routes.get("/v1/scheduled", responses=answers("A page.", schema("ScheduledPage")))
    async def list_scheduled(
        request: Request,
        channel: Annotated[str | None, Query(max_length=255)] = None,
        limit: Limit = 100,
        cursor: IdCursor = 0,
    ) -> Response:
        """Messages that wait for their time, in the order they came. `cursor` goes into the next request."""
        only(request, ("channel", "limit", "cursor"))
        running = _ready(service)
        name = None if channel is None else check_channel(channel)
        page = await running.schedules.page(running.namespace, name, cursor, limit)
        reached = page[-1].id if page else cursor
        # A page is bounded in bytes too, so a short one may not be the last.
        has_more = bool(page and await running.schedules.page(running.namespace, name, reached, 1))
        encoded = encode_page(b"scheduled", map(encode_scheduled, page), has_more, reached)
        return Response(encoded, media_type=JSON)

    @routes.get("/v1/scheduled/{scheduled_id}", responses=answers("The message.", schema("Scheduled")))
    async def get_scheduled(request: Request, scheduled_id: ScheduledId) -> Response:
        """One message that waits."""
        only(request, ())
        running = _ready(service)
        found = await running.schedules.get(running.namespace, scheduled_id)
        return Response(encode_scheduled(found), media_type=JSON)

    @routes.delete("/v1/scheduled/{scheduled_id}", status_code=204)
    async def cancel(request: Request, scheduled_id: ScheduledId) -> Response:
        """Never publish it."""
        only(request, ())
        running = _ready(service)
        await running.schedules.cancel(running.namespace, scheduled_id)
        return Response(status_code=204)

    @routes.post("/v1/scheduled/{scheduled_id}/promote", responses=answers("Published.", schema("Position")))
    async def promote(request: Request, scheduled_id: ScheduledId) -> Response:
        """Publish it now."""
        only(request, ())
        running = _ready(service)
        appended = await running.schedules.promote(running.namespace, scheduled_id)
        return Response(encode_positions(appended.positions), media_type=JSON)

    return routes


def _ready(service: Callable[[], Service]) -> Service:
    running = service()
    running.require_ready()
    return running
