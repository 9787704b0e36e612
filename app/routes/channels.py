"""Channels and their settings over REST."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Query, Request, Response

from app.routes.parameters import ChannelName, Limit, only
from app.routes.publish import NAMESPACE
from app.wire import json
from app.wire.publish import field_error
from app.wire.times import rfc3339
from app.wiring import Service
from subscriptions.domain.errors import Code, GaplessError, invalid
from subscriptions.domain.model import Channel, Retention
from subscriptions.domain.names import check_channel, is_channel
from subscriptions.domain.pattern import check_pattern, to_regex

MAX_AGE_S: Final = 2**31 - 1
MAX_BODY_BYTES: Final = 64 * 1024
_JSON: Final = "application/json"


class RetentionBody(msgspec.Struct, forbid_unknown_fields=True):
    """`max_age` in seconds."""

    max_age: Annotated[int, msgspec.Meta(ge=1, le=MAX_AGE_S)] | msgspec.UnsetType | None = msgspec.UNSET
    max_messages: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | msgspec.UnsetType | None = msgspec.UNSET


class ChannelBody(msgspec.Struct, forbid_unknown_fields=True):
    """Settings; `message_ttl` in seconds. `name` may repeat the name in the path."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    retention: RetentionBody | msgspec.UnsetType | None = msgspec.UNSET
    message_ttl: Annotated[float, msgspec.Meta(gt=0, le=315360000)] | msgspec.UnsetType | None = msgspec.UNSET


_decode: Final = msgspec.json.Decoder(ChannelBody).decode


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
        found = await service().history.channels(NAMESPACE, regex, cursor, limit + 1)
        page = found[:limit]
        following = page[-1].name if len(found) > limit else None
        body = {
            "channels": [msgspec.Raw(encode_channel(c)) for c in page],
            "has_more": len(found) > limit,
            "cursor": following,
        }
        return Response(msgspec.json.encode(body), media_type=_JSON)

    @routes.get("/v1/channels/{channel}", responses=_CHANNEL)
    async def get_channel(request: Request, channel: ChannelName) -> Response:
        """A channel: where it stands and what it keeps."""
        only(request, ())
        return _answer(await service().history.channel(NAMESPACE, check_channel(channel)))

    @routes.put("/v1/channels/{channel}", responses=_CHANNEL | _MADE, openapi_extra=_BODY)
    async def put_channel(request: Request, channel: ChannelName) -> Response:
        """Make a channel, or replace its settings: what is left out is cleared."""
        only(request, ())
        name, body = check_channel(channel), await _body(request)
        _same_name(body, name)
        kept = body.retention or RetentionBody()
        retention = Retention(_value(kept.max_age), _value(kept.max_messages))
        made, was_made = await service().history.put_channel(
            NAMESPACE, name, retention, _value(body.message_ttl)
        )
        return _answer(made, 201 if was_made else 200)

    @routes.patch("/v1/channels/{channel}", responses=_CHANNEL, openapi_extra=_BODY)
    async def patch_channel(request: Request, channel: ChannelName) -> Response:
        """Change some settings; null clears one."""
        only(request, ())
        name, body = check_channel(channel), await _body(request)
        _same_name(body, name)
        return _answer(await service().history.patch_channel(NAMESPACE, name, _settings(body)))

    @routes.delete("/v1/channels/{channel}", status_code=204)
    async def delete_channel(request: Request, channel: ChannelName) -> Response:
        """Delete a channel and its messages. A later publish begins it anew at seq 1."""
        only(request, ())
        await service().history.delete_channel(NAMESPACE, check_channel(channel))
        return Response(status_code=204)

    return routes


def encode_channel(channel: Channel) -> bytes:
    """The channel JSON of the protocol."""
    retention = {
        name: value
        for name, value in (
            ("max_age", channel.retention.max_age),
            ("max_messages", channel.retention.max_messages),
        )
        if value is not None
    }
    value: dict[str, Any] = {
        "name": channel.name,
        "last_id": channel.last_id,
        "last_seq": channel.last_seq,
        "first_seq": channel.first_seq,
        "created_at": rfc3339(channel.created_at_us).decode(),
        "retention": retention,
    }
    if channel.message_ttl is not None:
        value["message_ttl"] = channel.message_ttl
    return msgspec.json.encode(value)


def _answer(channel: Channel, status: int = 200) -> Response:
    return Response(encode_channel(channel), status, media_type=_JSON)


async def _body(request: Request) -> ChannelBody:
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media_type not in (_JSON, "application/merge-patch+json"):
        raise GaplessError(Code.UNSUPPORTED_MEDIA_TYPE, "send application/json")
    raw = b""
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > MAX_BODY_BYTES:
            raise GaplessError(Code.PAYLOAD_TOO_LARGE, f"the body is longer than {MAX_BODY_BYTES} bytes")
    json.check(raw)
    try:
        return _decode(raw)
    except msgspec.ValidationError as error:
        raise field_error(str(error)) from None


def _same_name(body: ChannelBody, name: str) -> None:
    if body.name is not msgspec.UNSET and body.name != name:
        raise invalid("name", "is not the name in the path")


def _value(given: Any) -> Any:
    return None if given is msgspec.UNSET else given


def _settings(body: ChannelBody) -> dict[str, float | None]:
    """The settings that the body names; `retention: null` clears both."""
    settings: dict[str, float | None] = {}
    if body.retention is None:
        settings |= {"max_age": None, "max_messages": None}
    elif body.retention is not msgspec.UNSET:
        for name in ("max_age", "max_messages"):
            if (given := getattr(body.retention, name)) is not msgspec.UNSET:
                settings[name] = given
    if body.message_ttl is not msgspec.UNSET:
        settings["message_ttl"] = body.message_ttl
    return settings


_SCHEMA: Final = {"schema": {"$ref": "#/components/schemas/Channel"}}
_BODY: Final = {
    "requestBody": {
        "required": True,
        "content": {_JSON: {"schema": {"$ref": "#/components/schemas/ChannelSettings"}}},
    }
}
_CHANNEL: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "The channel.", "content": {_JSON: _SCHEMA}}
}
_MADE: Final[dict[int | str, dict[str, Any]]] = {
    201: {"description": "The channel was made.", "content": {_JSON: _SCHEMA}}
}
_LIST: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "A page of channels.",
        "content": {_JSON: {"schema": {"$ref": "#/components/schemas/ChannelPage"}}},
    }
}
