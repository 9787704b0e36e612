"""Channels and their settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.api.answers import Count, Id, Time, or_unset
from app.api.lists import NamesQuery, name_pattern, page_by_name
from app.api.settings import MAX_COUNT, Ttl, refuse_other_name
from app.http.body import read_json
from app.http.request import JSON, NO_CONTENT, Answer, Plain, Request
from app.message import limits
from app.message.json import number, plain
from app.message.refusals import decode
from app.message.tags import etag, if_absent, if_match
from app.message.times import rfc3339
from subscriptions.domain import model
from subscriptions.domain.principal import Action, Noun
from subscriptions.ports import ChannelPort

MERGE_PATCH = "application/merge-patch+json"
MAX_AGE_S: Final = 2**31 - 1


class Retention(msgspec.Struct, forbid_unknown_fields=True):
    """The limits of retention. `max_age` is in seconds."""

    max_age: Annotated[int, Meta(ge=1, le=MAX_AGE_S)] | UnsetType | None = UNSET
    max_messages: Annotated[int, Meta(ge=1, le=MAX_COUNT)] | UnsetType | None = UNSET


class ChannelSettings(msgspec.Struct, forbid_unknown_fields=True):
    """The settings of a channel. Times are in seconds."""

    retention: Retention | UnsetType | None = UNSET
    message_ttl: Ttl | UnsetType | None = UNSET


class ChannelRequest(ChannelSettings, kw_only=True, forbid_unknown_fields=True):
    """Settings. `name` may repeat the name in the path."""

    name: limits.Name | msgspec.UnsetType = UNSET


def channel_values(given: ChannelSettings) -> Iterator[tuple[str, Any]]:
    """The given settings of a channel as they are stored; `retention: null` clears both of its members."""
    if given.retention is None:
        yield from (("max_age", None), ("max_messages", None))
    elif given.retention is not UNSET:
        for name in Retention.__struct_fields__:
            if (value := getattr(given.retention, name)) is not UNSET:
                yield name, value
    if given.message_ttl is not UNSET:
        yield "message_ttl", None if given.message_ttl is None else number(given.message_ttl)


class Kept(msgspec.Struct):
    """The limits of retention: an age in seconds, and a number of messages."""

    max_age: Count | UnsetType = UNSET
    max_messages: Count | UnsetType = UNSET


class Channel(msgspec.Struct, kw_only=True):
    """A channel's last id and seq, and its settings."""

    name: str
    last_id: Id
    last_seq: Count
    first_seq: Count
    created_at: Time
    retention: Kept
    message_ttl: float | UnsetType = UNSET
    origins: dict[str, str] | UnsetType = UNSET


class ChannelPage(msgspec.Struct):
    """A page of channels."""

    channels: list[Channel]
    has_more: bool
    cursor: str | None


async def list_channels(request: Request[NamesQuery], channels: ChannelPort) -> Answer:
    """List channels by name. `cursor` goes into the next request; it is null on the last page."""
    regex, limit = name_pattern(request, Noun.CHANNEL, Action.MANAGE), request.query.limit
    found = await channels.page(request.namespace, regex, request.query.cursor, limit + 1)
    return page_by_name(ChannelPage, [(each.name, encode_channel(each)) for each in found], limit)


async def get_channel(request: Plain, channels: ChannelPort) -> Answer:
    """Get a channel: its last id and seq, and its settings."""
    return _answer(await channels.get(request.namespace, request.name))


async def put_channel(request: Plain, channels: ChannelPort) -> Answer:
    """Create a channel, or replace its settings: a setting that is left out is cleared. `If-None-Match: *`
    only creates."""
    tags, absent = if_match(request.headers), if_absent(request.headers)
    settings = await _settings(request)
    made, was_made = await channels.put(
        request.namespace,
        request.name,
        model.Retention(settings.get("max_age"), settings.get("max_messages")),
        settings.get("message_ttl"),
        if_match=tags,
        if_absent=absent,
    )
    return _answer(made, 201 if was_made else 200)


async def patch_channel(request: Plain, channels: ChannelPort) -> Answer:
    """Change some settings of a channel; null clears one."""
    tags, settings = if_match(request.headers), await _settings(request)
    changed = await channels.patch(request.namespace, request.name, settings, if_match=tags)
    return _answer(changed)


async def delete_channel(request: Plain, channels: ChannelPort) -> Answer:
    """Delete a channel and its messages. A later publish creates it again, from seq 1."""
    tags = if_match(request.headers)
    await channels.delete(request.namespace, request.name, if_match=tags)
    return NO_CONTENT


def encode_channel(channel: model.Channel) -> bytes:
    """The channel JSON of the protocol."""
    shown = Channel(
        name=channel.name,
        last_id=channel.last_id,
        last_seq=channel.last_seq,
        first_seq=channel.first_seq,
        created_at=rfc3339(channel.created_at_us).decode(),
        retention=Kept(or_unset(channel.retention.max_age), or_unset(channel.retention.max_messages)),
        message_ttl=UNSET if channel.message_ttl is None else number(channel.message_ttl),
        origins=dict(channel.origins) or UNSET,
    )
    return msgspec.json.encode(shown)


def _answer(channel: model.Channel, status: int = 200) -> Answer:
    return Answer(encode_channel(channel), status, etag(channel.tag))


async def _settings(request: Plain) -> dict[str, Any]:
    body = decode(await read_json(request, media_types=(JSON, MERGE_PATCH)), ChannelRequest)
    refuse_other_name(body.name, request.name)
    return dict(channel_values(body))


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Channel settings as they are sent, with `retention` around two of them."""
    retention = {name: settings[name] for name in ("max_age", "max_messages") if name in settings}
    shown: dict[str, Any] = {"retention": retention} if retention else {}
    if "message_ttl" in settings:
        shown["message_ttl"] = plain(settings["message_ttl"])
    return shown
