"""All definitions as one document: to keep, to compare, or to import elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, TypeVar, cast

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.api.answers import Count
from app.api.channels import ChannelSettings, channel_values, nested
from app.api.granted import narrowed, require_definitions
from app.api.policies import PolicyDefinition, policy_of, shown_definition, shown_policy
from app.api.settings import PushRules, shown_settings
from app.api.subscriptions import SubscriptionEntry, definition_of, shown_start
from app.http.body import read_json
from app.http.parameters import DryRunQuery
from app.http.request import Answer, Plain, Request
from app.message import limits
from app.message.refusals import decode
from app.message.tags import bound, etag, if_match
from subscriptions.domain import delivery
from subscriptions.domain.delivery import AppliesTo, ChannelDefinition, Definition, Definitions
from subscriptions.domain.errors import GaplessError, invalid
from subscriptions.domain.names import check_channel
from subscriptions.engine.durable.announcing import AnnouncingPolicies

MAX_DEFINITIONS_BYTES: Final = 8 * 1024 * 1024
MAX_ENTRIES: Final = 100_000
"""Channels, subscriptions or policies in one document."""
_Entries: Final = Meta(max_length=MAX_ENTRIES)


class ChannelEntry(ChannelSettings, kw_only=True, forbid_unknown_fields=True):
    """A channel with its own settings."""

    name: limits.Name


class PolicyEntry(PolicyDefinition, kw_only=True, forbid_unknown_fields=True):
    """A policy."""

    name: limits.Name


class DefinitionsDocument(msgspec.Struct, forbid_unknown_fields=True):
    """All that is defined."""

    version: Literal[1] | UnsetType = UNSET
    channels: Annotated[list[ChannelEntry], _Entries] | UnsetType | None = UNSET
    subscriptions: Annotated[list[SubscriptionEntry], _Entries] | UnsetType | None = UNSET
    policies: Annotated[list[PolicyEntry], _Entries] | UnsetType | None = UNSET


_Entry = TypeVar("_Entry", ChannelEntry, SubscriptionEntry, PolicyEntry)
_Made = TypeVar("_Made")


def parse_definitions(raw: bytes, now: datetime, rules: PushRules) -> Definitions:
    """A document of definitions, in the form that `GET /v1/definitions` answers."""
    body = decode(raw, DefinitionsDocument)

    def subscription(entry: SubscriptionEntry) -> Definition:
        return definition_of(entry.name, entry, now, rules)

    subscriptions = body.subscriptions or []
    return Definitions(
        channels=_entries("channels", body.channels or [], _channel),
        subscriptions=_entries("subscriptions", subscriptions, subscription),
        policies=_entries("policies", body.policies or [], lambda entry: policy_of(entry.name, entry)),
        paused=frozenset(entry.name for entry in subscriptions if entry.paused is True),
    )


def _channel(entry: ChannelEntry) -> ChannelDefinition:
    settings = {name: value for name, value in channel_values(entry) if value is not None}
    return ChannelDefinition(entry.name, settings)


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


Kind = Literal["channel", "subscription", "policy"]


class Change(msgspec.Struct, kw_only=True):
    """A thing that was created or changed, before and after."""

    kind: Kind
    name: str
    before: dict[str, Any] | None = msgspec.field(name="from")
    after: dict[str, Any] = msgspec.field(name="to")


class Changes(msgspec.Struct):
    """The changes that an import made, or would make."""

    dry_run: bool
    created: list[str]
    updated: list[str]
    unchanged: Count
    diff: list[Change]


async def export_definitions(request: Plain, policies: AnnouncingPolicies) -> Answer:
    """Export all definitions that may be managed: channels, subscriptions and policies with their own
    settings, without the secrets of webhooks."""
    defined = narrowed(request.principal, await policies.port.definitions(request.namespace))
    return Answer(encode_definitions(defined), headers=etag(defined.tag))


async def import_definitions(
    request: Request[DryRunQuery], policies: AnnouncingPolicies, push_rules: PushRules
) -> Answer:
    """Import definitions, all of them or none. Missing ones are created, different ones are changed, and none
    is deleted."""
    tags, dry_run = if_match(request.headers), request.query.dry_run
    raw = await read_json(request, MAX_DEFINITIONS_BYTES)
    wanted = parse_definitions(raw, datetime.now(UTC), push_rules.of(request.principal))
    if request.principal.grants is not None:
        there = await policies.port.definitions(request.namespace)
        require_definitions(request.principal, wanted, there.policies)
        if there.policies and wanted.policies:
            tags = bound(tags, there.tag)
    changes, unchanged = await policies.apply(request.namespace, wanted, dry_run=dry_run, if_match=tags)
    return Answer(encode_changes(changes, unchanged, dry_run=dry_run))


def encode_definitions(definitions: Definitions) -> bytes:
    """The document of definitions, which can be imported again: own settings only."""
    subscriptions = []
    for defined in definitions.subscriptions:
        shown: dict[str, Any] = {
            "name": defined.name,
            "channels": defined.channels,
            "start": shown_start(defined.start),
            **shown_settings(defined.settings),
        }
        if defined.name in definitions.paused:
            shown["paused"] = True
        subscriptions.append(shown)
    document = {
        "version": 1,
        "channels": [{"name": c.name, **nested(c.settings)} for c in definitions.channels],
        "subscriptions": subscriptions,
        "policies": [{"name": policy.name, **shown_policy(policy)} for policy in definitions.policies],
    }
    return msgspec.json.encode(document)


def encode_changes(changes: Iterable[delivery.Change], unchanged: int, *, dry_run: bool) -> bytes:
    """The changes that an import made, or would make."""
    made: list[str] = []
    updated: list[str] = []
    diff = []
    for change in changes:
        (made if change.before is None else updated).append(f"{change.kind}:{change.name}")
        before = None if change.before is None else _side(change.kind, change.before)
        after = _side(change.kind, change.after)
        diff.append(Change(kind=cast(Kind, change.kind), name=change.name, before=before, after=after))
    return msgspec.json.encode(Changes(dry_run, made, updated, unchanged, diff))


def _side(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """One side of a difference, in the JSON form of that kind of thing."""
    if kind == "channel":
        return nested(settings)
    if kind == "policy":
        definition = shown_definition(AppliesTo(settings["applies_to"]), settings["definition"])
        return {**settings, "definition": definition}
    others = {name: settings[name] for name in ("channels", "start", "paused") if name in settings}
    if "start" in others:
        others["start"] = shown_start(others["start"])
    return {**others, **shown_settings(settings)}
