"""Routes that list, cancel and promote scheduled messages."""

from __future__ import annotations

from functools import partial

from app.request import NO_CONTENT, Answer, Plain, Request
from app.routes.lists import page_by_id
from app.wire.deliveries import encode_scheduled
from app.wire.encode import encode_positions
from app.wire.parameters import ScheduledQuery
from subscriptions.domain.names import check_channel


async def list_scheduled(request: Request[ScheduledQuery]) -> Answer:
    """List scheduled messages in the order of their arrival. `cursor` goes into the next request."""
    query = request.query
    name = check_channel(query.channel) if isinstance(query.channel, str) else None
    request.service.require_ready()
    read = partial(request.service.schedules.page, request.namespace, name)
    return await page_by_id(b"scheduled", read, encode_scheduled, query.cursor, query.limit)


async def get_scheduled(request: Plain) -> Answer:
    """Get one scheduled message."""
    request.service.require_ready()
    return Answer(encode_scheduled(await request.service.schedules.get(request.namespace, request.number)))


async def cancel_scheduled(request: Plain) -> Answer:
    """Cancel a scheduled message: it is never published."""
    request.service.require_ready()
    await request.service.schedules.cancel(request.namespace, request.number)
    return NO_CONTENT


async def promote_scheduled(request: Plain) -> Answer:
    """Publish a scheduled message now."""
    request.service.require_ready()
    appended = await request.service.schedules.promote(request.namespace, request.number)
    return Answer(encode_positions(appended.positions))
