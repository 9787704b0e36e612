"""Routes that list, cancel and promote scheduled messages."""

from __future__ import annotations

from functools import partial

from app.api.lists import page_by_id
from app.http.parameters import ScheduledQuery
from app.http.request import NO_CONTENT, Answer, Plain, Request
from app.message.deliveries import encode_scheduled
from app.message.message import encode_positions
from subscriptions.domain.names import check_channel
from subscriptions.engine.durable.announcing import AnnouncingSchedule
from subscriptions.engine.gate import Gate


async def list_scheduled(
    request: Request[ScheduledQuery], schedules: AnnouncingSchedule, gate: Gate
) -> Answer:
    """List scheduled messages in the order of their arrival. `cursor` goes into the next request."""
    query = request.query
    name = check_channel(query.channel) if isinstance(query.channel, str) else None
    gate.require()
    read = partial(schedules.port.page, request.namespace, name)
    return await page_by_id(b"scheduled", read, encode_scheduled, query.cursor, query.limit)


async def get_scheduled(request: Plain, schedules: AnnouncingSchedule, gate: Gate) -> Answer:
    """Get one scheduled message."""
    gate.require()
    return Answer(encode_scheduled(await schedules.port.get(request.namespace, request.number)))


async def cancel_scheduled(request: Plain, schedules: AnnouncingSchedule, gate: Gate) -> Answer:
    """Cancel a scheduled message: it is never published."""
    gate.require()
    await schedules.port.cancel(request.namespace, request.number)
    return NO_CONTENT


async def promote_scheduled(request: Plain, schedules: AnnouncingSchedule, gate: Gate) -> Answer:
    """Publish a scheduled message now."""
    gate.require()
    appended = await schedules.promote(request.namespace, request.number)
    return Answer(encode_positions(appended.positions))
