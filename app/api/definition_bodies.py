"""Reads subscriptions, policies and whole definitions from request bodies.

All functions raise `malformed_json`, or `invalid_request` about a field by its path. Members that are null
count as not given; in a change of a subscription they clear a setting.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.api.settings import (
    ChannelSettings,
    Push,
    SubscriptionSettings,
    channel_values,
    push_value,
    subscription_values,
)
from app.message import json, limits
from app.message.refusals import field_error
from app.message.times import MAX_MOMENT_CHARACTERS, parse_since, rfc3339
from subscriptions.domain.delivery import (
    AppliesTo,
    ChannelDefinition,
    Definition,
    Definitions,
    Policy,
    Settings,
)
from subscriptions.domain.errors import GaplessError, invalid
from subscriptions.domain.model import MAX_ID, microseconds
from subscriptions.domain.names import check_channel
from subscriptions.domain.pattern import check_budget, check_pattern
from subscriptions.domain.selection import MAX_CHANNELS

MAX_PRIORITY: Final = 1_000_000
MAX_DEFINITIONS_BYTES: Final = 8 * 1024 * 1024
MAX_ENTRIES: Final = 100_000
"""Channels, subscriptions or policies in one document."""

_DIGITS: Final = re.compile(r"[0-9]{1,16}", re.ASCII)
_START: Final = "must be earliest, latest, an id, or a time: RFC 3339, or how long ago (30s, 10m, 2h, 1d)"

_Channels = Annotated[list[limits.Name], Meta(min_length=1, max_length=MAX_CHANNELS)]
_Start = Annotated[int, Meta(ge=0, le=MAX_ID)] | Annotated[str, Meta(max_length=MAX_MOMENT_CHARACTERS)]
_POLICY: Final = {
    "anyOf": [
        {"$ref": f"#/components/schemas/{form.__name__}"} for form in (ChannelSettings, SubscriptionSettings)
    ],
    "minProperties": 1,
}
_Entries: Final = Meta(max_length=MAX_ENTRIES)
_Priority = Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]


class SubscriptionDefinition(SubscriptionSettings, kw_only=True, forbid_unknown_fields=True):
    """A durable subscription. It begins at `start`: earliest, latest, after an id, or at a time."""

    name: limits.Name | UnsetType | None = UNSET
    channels: _Channels
    start: _Start | UnsetType | None = UNSET
    push: Push | UnsetType | None = UNSET


class SubscriptionChange(SubscriptionSettings, kw_only=True, forbid_unknown_fields=True):
    """The members of a subscription to change; null clears one. `start` cannot change."""

    name: limits.Name | UnsetType | None = UNSET
    channels: _Channels | UnsetType = UNSET
    start: _Start | UnsetType | None = UNSET
    push: Push | UnsetType | None = UNSET


class SeekRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Where to go on: earliest, latest, after an id, or at a time (RFC 3339, or 10m, 2h, 1d ago)."""

    to: _Start


class BindRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Channels and patterns."""

    channels: _Channels


class PolicyDefinition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Settings for everything that a pattern matches."""

    name: limits.Name | UnsetType | None = UNSET
    pattern: limits.Name
    applies_to: Literal["channels", "subscriptions"]
    priority: _Priority | UnsetType | None = UNSET
    definition: Annotated[msgspec.Raw, Meta(extra_json_schema=_POLICY)]


class ChannelEntry(ChannelSettings, kw_only=True, forbid_unknown_fields=True):
    """A channel with its own settings."""

    name: limits.Name


class SubscriptionEntry(SubscriptionSettings, kw_only=True, forbid_unknown_fields=True):
    """A subscription with its own settings."""

    name: limits.Name
    channels: _Channels
    start: _Start | UnsetType | None = UNSET
    push: Push | UnsetType | None = UNSET
    paused: bool | UnsetType | None = UNSET


class PolicyEntry(PolicyDefinition, kw_only=True, forbid_unknown_fields=True):
    """A policy."""

    name: limits.Name


class DefinitionsDocument(msgspec.Struct, forbid_unknown_fields=True):
    """All that is defined."""

    version: Literal[1] | UnsetType = UNSET
    channels: Annotated[list[ChannelEntry], _Entries] | UnsetType | None = UNSET
    subscriptions: Annotated[list[SubscriptionEntry], _Entries] | UnsetType | None = UNSET
    policies: Annotated[list[PolicyEntry], _Entries] | UnsetType | None = UNSET


_Struct = TypeVar("_Struct", bound=msgspec.Struct)
_Entry = TypeVar("_Entry", ChannelEntry, SubscriptionEntry, PolicyEntry)
_Made = TypeVar("_Made")


def parse_subscription(name: str, raw: bytes, now: datetime, *, allow_private: bool) -> Definition:
    """The body of a PUT. `allow_private`: whether its push URL may have an address that is not public."""
    body = decode(raw, SubscriptionDefinition)
    _same_name(body.name, name)
    return _definition(name, body, now, allow_private=allow_private)


def parse_patch(name: str, raw: bytes, *, allow_private: bool) -> tuple[tuple[str, ...] | None, Settings]:
    """The body of a PATCH: the new channels, if any, and settings; None clears one."""
    body = decode(raw, SubscriptionChange)
    _same_name(body.name, name)
    if body.start is not UNSET:
        raise invalid("start", "says where a new subscription begins; seek moves one that is there")
    channels = None if body.channels is UNSET else _channels(body.channels)
    return channels, _settings(body, allow_private=allow_private)


def parse_seek(raw: bytes, now: datetime) -> str:
    """The body of a seek, in the form of `Definition.start`."""
    return normal_start(decode(raw, SeekRequest).to, now, "to")


def parse_binding(raw: bytes) -> tuple[str, ...]:
    """The body of a bind or unbind: channels and patterns, each once."""
    return _channels(decode(raw, BindRequest).channels)


def parse_policy(name: str, raw: bytes) -> Policy:
    """The body of a PUT."""
    body = decode(raw, PolicyDefinition)
    _same_name(body.name, name)
    return _policy(name, body)


def parse_definitions(raw: bytes, now: datetime, *, allow_private: bool) -> Definitions:
    """A document of definitions, in the form that `GET /v1/definitions` answers."""
    body = decode(raw, DefinitionsDocument)

    def subscription(entry: SubscriptionEntry) -> Definition:
        return _definition(entry.name, entry, now, allow_private=allow_private)

    subscriptions = body.subscriptions or []
    return Definitions(
        channels=_entries("channels", body.channels or [], _channel),
        subscriptions=_entries("subscriptions", subscriptions, subscription),
        policies=_entries("policies", body.policies or [], lambda entry: _policy(entry.name, entry)),
        paused=frozenset(entry.name for entry in subscriptions if entry.paused is True),
    )


def normal_start(given: int | str, now: datetime, field: str = "start") -> str:
    """`earliest`, `latest`, the digits of an id, or a moment as RFC 3339 in UTC, not before 1970."""
    if isinstance(given, int):
        return str(given)
    if given in ("earliest", "latest"):
        return given
    if _DIGITS.fullmatch(given) and int(given) <= MAX_ID:
        return str(int(given))
    try:
        moment = parse_since(given, now)
    except GaplessError:
        raise invalid(field, _START) from None
    return rfc3339(max(0, microseconds(moment))).decode()


def decode(raw: bytes, form: type[_Struct]) -> _Struct:
    """Decodes strict JSON of this form."""
    json.check(raw)
    try:
        return msgspec.json.decode(raw, type=form)
    except msgspec.ValidationError as error:
        raise field_error(str(error)) from None


def _same_name(given: str | UnsetType | None, name: str) -> None:
    if isinstance(given, str) and given != name:
        raise invalid("name", "is not the name in the path")


def _definition(
    name: str, body: SubscriptionDefinition | SubscriptionEntry, now: datetime, *, allow_private: bool
) -> Definition:
    start = "latest" if body.start is UNSET or body.start is None else normal_start(body.start, now)
    settings = _settings(body, allow_private=allow_private)
    own = {name: value for name, value in settings.items() if value is not None}
    return Definition(name, _channels(body.channels), start, own)


def _settings(
    body: SubscriptionDefinition | SubscriptionChange | SubscriptionEntry, *, allow_private: bool
) -> dict[str, Any]:
    """The given settings, with None for null."""
    settings = dict(subscription_values(body))
    if body.push is None:
        settings["push"] = None
    elif body.push is not UNSET:
        required = isinstance(body, SubscriptionDefinition)
        settings["push"] = push_value(body.push, allow_private=allow_private, secret_required=required)
    return settings


def _channels(given: list[str]) -> tuple[str, ...]:
    for index, text in enumerate(given):
        check_pattern(text, f"channels[{index}]")
    check_budget(given, "channels")
    return tuple(dict.fromkeys(given))


def _channel(entry: ChannelEntry) -> ChannelDefinition:
    settings = {name: value for name, value in channel_values(entry) if value is not None}
    return ChannelDefinition(entry.name, settings)


def _policy(name: str, body: PolicyDefinition) -> Policy:
    applies_to = AppliesTo(body.applies_to)
    try:
        definition = _policy_settings(applies_to, bytes(body.definition))
    except GaplessError as error:
        raise _below(error, "definition") from None
    if not definition:
        raise invalid("definition", "sets nothing")
    priority = body.priority if isinstance(body.priority, int) else 0
    return Policy(name, check_pattern(body.pattern, "pattern"), applies_to, priority, definition)


def _policy_settings(applies_to: AppliesTo, raw: bytes) -> Settings:
    if applies_to is AppliesTo.CHANNELS:
        values = channel_values(decode(raw, ChannelSettings))
    else:
        values = subscription_values(decode(raw, SubscriptionSettings))
    return {name: value for name, value in values if value is not None}


def _entries(place: str, entries: Iterable[_Entry], make: Callable[[_Entry], _Made]) -> tuple[_Made, ...]:
    """Makes each entry into the thing that it defines. No two may have the same name."""
    made = []
    names: set[str] = set()
    for index, entry in enumerate(entries):
        try:
            check_channel(entry.name, "name")
            if entry.name in names:
                raise invalid("name", "occurs twice")
            made.append(make(entry))
        except GaplessError as error:
            raise limits.within(error, f"{place}[{index}]") from None
        names.add(entry.name)
    return tuple(made)


def _below(error: GaplessError, place: str) -> GaplessError:
    """The same error for a part of a body; `place` is the path of that part."""
    if [e.field for e in error.errors] == ["body"]:
        return invalid(place, error.errors[0].message)
    return limits.within(error, place)
