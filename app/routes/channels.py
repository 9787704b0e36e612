"""Channels and their settings over REST."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Query, Request, Response

from app.routes.bodies import JSON, read_json
from app.routes.parameters import ChannelName, Limit, only
from app.schemas import answers, schema, takes
from app.wire.definitions import decode
from app.wire.settings import ChannelSettings, channel_values, number
from app.wire.times import rfc3339
from app.wiring import Service
from subscriptions.domain.errors import Code, GaplessError, invalid
from subscriptions.domain.model import Channel, Retention
from subscriptions.domain.names import check_channel, is_channel
from subscriptions.domain.pattern import check_pattern, to_regex


class ChannelBody(ChannelSettings, kw_only=True, forbid_unknown_fields=True):
    """Settings. `name` may repeat the name in the path."""

    name: str | msgspec.UnsetType = msgspec.UNSET


def router(service: Callable[[], Service]) -> APIRouter:
    """The routes, over whatever service is running."""
    routes = APIRouter(tags=["channels"])

    @routes.get("/v1/channels", responses=_LIST)
    async def list_channels(
        request: Request,
        pattern: Annotated[str | None, Query(max_length=255, description="Only matching names.")] = None,
        limit: Limit = 100,
        cursor: Annotated[str, Query(max_length=255, description="Where the page before ended.")] = "",
    ) -> Response:
        """Channels by name. `cursor` goes into the next request; it is null on the last page."""
        only(request, ("pattern", "limit", "cursor"))
        if cursor and not is_channel(cursor):
            raise GaplessError(Code.INVALID_REQUEST, "cursor: is not one of this list", status=400)
        regex = None if pattern is None else to_regex(check_pattern(pattern, "pattern"))
        running = service()
        found = await running.history.channels(running.namespace, regex, cursor, limit + 1)
        page = found[:limit]
        following = page[-1].name if len(found) > limit else None
        body = {
            "channels": [msgspec.Raw(encode_channel(c)) for c in page],
            "has_more": len(found) > limit,
            "cursor": following,
        }
        return Response(msgspec.json.encode(body), media_type=JSON)

    @routes.get("/v1/channels/{channel}", responses=_CHANNEL)
    async def get_channel(request: Request, channel: ChannelName) -> Response:
        """A channel: where it stands and what it keeps."""
        only(request, ())
        running = service()
        return _answer(await running.history.channel(running.namespace, check_channel(channel)))

    @routes.put("/v1/channels/{channel}", responses=_CHANNEL | _MADE, openapi_extra=_BODY)
    async def put_channel(request: Request, channel: ChannelName) -> Response:
        """Make a channel, or replace its settings: what is left out is cleared."""
        only(request, ())
        name, body = check_channel(channel), await _body(request)
        _same_name(body, name)
        settings = dict(channel_values(body))
        running = service()
        made, was_made = await running.history.put_channel(
            running.namespace,
            name,
            Retention(settings.get("max_age"), settings.get("max_messages")),
            settings.get("message_ttl"),
        )
        return _answer(made, 201 if was_made else 200)

    @routes.patch("/v1/channels/{channel}", responses=_CHANNEL, openapi_extra=_BODY)
    async def patch_channel(request: Request, channel: ChannelName) -> Response:
        """Change some settings; null clears one."""
        only(request, ())
        name, body = check_channel(channel), await _body(request)
        _same_name(body, name)
        running = service()
        changed = await running.history.patch_channel(running.namespace, name, dict(channel_values(body)))
        return _answer(changed)

    @routes.delete("/v1/channels/{channel}", status_code=204)
    async def delete_channel(request: Request, channel: ChannelName) -> Response:
        """Delete a channel and its messages. A later publish begins it anew at seq 1."""
        only(request, ())
        running = service()
        await running.history.delete_channel(running.namespace, check_channel(channel))
        return Response(status_code=204)

    return routes


def encode_channel(channel: Channel) -> bytes:
    """The channel JSON of the protocol."""
    retention = {"max_age": channel.retention.max_age, "max_messages": channel.retention.max_messages}
    shown: dict[str, Any] = {
        "name": channel.name,
        "last_id": channel.last_id,
        "last_seq": channel.last_seq,
        "first_seq": channel.first_seq,
        "created_at": rfc3339(channel.created_at_us).decode(),
        "retention": {name: value for name, value in retention.items() if value is not None},
    }
    if channel.message_ttl is not None:
        shown["message_ttl"] = number(channel.message_ttl)
    if channel.origins:
        shown["origins"] = dict(channel.origins)
    return msgspec.json.encode(shown)


def _answer(channel: Channel, status: int = 200) -> Response:
    return Response(encode_channel(channel), status, media_type=JSON)


async def _body(request: Request) -> ChannelBody:
    raw = await read_json(request, media_types=(JSON, "application/merge-patch+json"))
    return decode(raw, ChannelBody)


def _same_name(body: ChannelBody, name: str) -> None:
    if body.name is not msgspec.UNSET and body.name != name:
        raise invalid("name", "is not the name in the path")


_CHANNEL: Final = answers("The channel.", schema("Channel"))
_MADE: Final = answers("The channel was made.", schema("Channel"), 201)
_LIST: Final = answers("A page of channels.", schema("ChannelPage"))
_BODY: Final = takes("ChannelSettings")
