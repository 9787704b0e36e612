"""Scheduled messages: they are listed, cancelled and promoted."""

from __future__ import annotations

from base64 import b64encode
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.api.answers import Base64, Changing, Id, Json, Time, or_unset, stored
from app.api.lists import granted_names, page_by_id
from app.http.parameters import IdCursor, Limit, Name
from app.http.request import NO_CONTENT, Answer, Plain, Request
from app.message.json import number
from app.message.message import encode_positions
from app.message.times import rfc3339
from subscriptions.domain import delivery
from subscriptions.domain.names import check_channel
from subscriptions.domain.principal import Action, Noun
from subscriptions.engine.durable.announcing import AnnouncingSchedule
from subscriptions.engine.gate import Gate


class ScheduledQuery(msgspec.Struct):
    """Which scheduled messages are listed."""

    channel: Name | UnsetType = UNSET
    limit: Limit = 100
    cursor: IdCursor = 0


class Scheduled(Changing, kw_only=True):
    """A scheduled message. `ttl` counts from its time. `withheld`: it was not published then, and waits for
    somebody to promote it. It changes another message and was `refused`, with this code, or the credential of
    whoever scheduled it had ended."""

    scheduled_id: str
    channel: str
    deliver_at: Time
    created_at: Time
    type: str
    key: str | UnsetType = UNSET
    data: Json | UnsetType = UNSET
    data_base64: Base64 | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    ttl: float | UnsetType = UNSET
    sender: str | UnsetType = UNSET
    withheld: bool | UnsetType = UNSET
    refused: Annotated[str, Meta(examples=["message_not_found"])] | UnsetType = UNSET


class ScheduledPage(msgspec.Struct):
    """A page of scheduled messages."""

    scheduled: list[Scheduled]
    has_more: bool
    cursor: Id


def _require(request: Request[Any], channel: str) -> None:
    """Raises `forbidden` unless the scheduled messages of this channel may be managed."""
    request.principal.require((Action.MANAGE,), Noun.CHANNEL, (channel,))


async def _require_one(request: Plain, schedules: AnnouncingSchedule) -> None:
    """As `_require`, for the scheduled message in the path, which never changes its channel."""
    if request.principal.grants is not None:
        _require(request, (await schedules.port.get(request.namespace, request.number)).message.channel)


async def list_scheduled(
    request: Request[ScheduledQuery], schedules: AnnouncingSchedule, gate: Gate
) -> Answer:
    """List scheduled messages in the order of their arrival, for the channels that may be managed. `cursor`
    goes into the next request."""
    query = request.query
    name = check_channel(query.channel) if isinstance(query.channel, str) else None
    names = granted_names(request.principal, name, Noun.CHANNEL, Action.MANAGE)
    gate.require(request.namespace)
    read = partial(schedules.port.page, request.namespace, name, names_regex=names)
    return await page_by_id(ScheduledPage, read, encode_scheduled, query.cursor, query.limit)


async def get_scheduled(request: Plain, schedules: AnnouncingSchedule, gate: Gate) -> Answer:
    """Get one scheduled message."""
    gate.require(request.namespace)
    found = await schedules.port.get(request.namespace, request.number)
    _require(request, found.message.channel)
    return Answer(encode_scheduled(found))


async def cancel_scheduled(request: Plain, schedules: AnnouncingSchedule, gate: Gate) -> Answer:
    """Cancel a scheduled message: it is never published."""
    gate.require(request.namespace)
    await _require_one(request, schedules)
    await schedules.port.cancel(request.namespace, request.number)
    return NO_CONTENT


async def promote_scheduled(request: Plain, schedules: AnnouncingSchedule, gate: Gate) -> Answer:
    """Publish a scheduled message now."""
    gate.require(request.namespace)
    await _require_one(request, schedules)
    appended = await schedules.promote(request.namespace, request.number)
    return Answer(encode_positions(appended.positions))


def encode_scheduled(scheduled: delivery.Scheduled) -> bytes:
    """A scheduled message. `ttl` is in seconds and counts from its time."""
    message = scheduled.message
    shown = Scheduled(
        scheduled_id=str(scheduled.id),
        channel=message.channel,
        deliver_at=rfc3339(scheduled.deliver_at_us).decode(),
        created_at=rfc3339(scheduled.created_at_us).decode(),
        type=message.type,
        key=or_unset(message.key),
        data=UNSET if message.data is None else stored(message.data),
        data_base64=UNSET if message.data is not None else b64encode(message.binary or b"").decode(),
        headers=UNSET if message.headers in (None, b"", b"{}") else stored(message.headers),
        ttl=UNSET if message.ttl is None else number(message.ttl),
        sender=or_unset(message.sender),
        withheld=scheduled.withheld or UNSET,
        refused=or_unset(scheduled.refused),
    )
    change = b"" if message.change is None else b"," + message.change.text[1:-1]
    return msgspec.json.encode(shown)[:-1] + change + b"}"
