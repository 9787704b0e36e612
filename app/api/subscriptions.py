"""Durable subscriptions: they are created, shown, changed, moved, paused and deleted."""

from __future__ import annotations

import dataclasses
import re
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.api import answers
from app.api.answers import Count, Id, Time, or_unset, stored
from app.api.granted import require_subscription
from app.api.lists import NamesQuery, name_pattern, page_by_name
from app.api.settings import (
    DeadLetterTo,
    Filter,
    Push,
    PushRules,
    SubscriptionSettings,
    push_value,
    refuse_other_name,
    shown_settings,
    subscription_values,
)
from app.http.body import read_json
from app.http.parameters import DryRunQuery, IdCursor, Limit
from app.http.request import NO_CONTENT, Answer, Plain, Request
from app.message import limits
from app.message.message import encode_message
from app.message.refusals import decode
from app.message.tags import bound, etag, if_absent, if_match
from app.message.times import MAX_MOMENT_CHARACTERS, parse_since, rfc3339
from subscriptions.domain import delivery
from subscriptions.domain.delivery import State
from subscriptions.domain.errors import GaplessError, invalid
from subscriptions.domain.model import MAX_ID, microseconds
from subscriptions.domain.pattern import check_budget, check_pattern
from subscriptions.domain.principal import Action, Noun
from subscriptions.domain.selection import MAX_CHANNELS
from subscriptions.engine.durable.announcing import AnnouncingSubscriptions
from subscriptions.engine.durable.consumers import Consumers
from subscriptions.engine.gate import Gate

_DIGITS: Final = re.compile(r"[0-9]{1,16}", re.ASCII)
_START: Final = "must be earliest, latest, an id, or a time: RFC 3339, or how long ago (30s, 10m, 2h, 1d)"
Channels = Annotated[list[limits.Name], Meta(min_length=1, max_length=MAX_CHANNELS)]
StartAt = Annotated[int, Meta(ge=0, le=MAX_ID)] | Annotated[str, Meta(max_length=MAX_MOMENT_CHARACTERS)]


class OutstandingQuery(msgspec.Struct):
    """Which of a subscription's messages are shown."""

    state: Annotated[State, Meta(description="Only in this state.")] | UnsetType = UNSET
    limit: Limit = 100
    cursor: IdCursor = 0


class DeleteQuery(msgspec.Struct):
    """Conditions that keep a subscription from being deleted."""

    if_empty: Annotated[bool, Meta(description="409 if it holds messages.")] = False
    if_unused: Annotated[bool, Meta(description="409 if it has members.")] = False


class SubscriptionDefinition(SubscriptionSettings, kw_only=True, forbid_unknown_fields=True):
    """A durable subscription. It begins at `start`: earliest, latest, after an id, or at a time."""

    name: limits.Name | UnsetType | None = UNSET
    channels: Channels
    start: StartAt | UnsetType | None = UNSET
    push: Push | UnsetType | None = UNSET


class SubscriptionChange(SubscriptionSettings, kw_only=True, forbid_unknown_fields=True):
    """The members of a subscription to change; null clears one. `start` cannot change."""

    name: limits.Name | UnsetType | None = UNSET
    channels: Channels | UnsetType = UNSET
    start: StartAt | UnsetType | None = UNSET
    push: Push | UnsetType | None = UNSET


class SubscriptionEntry(SubscriptionSettings, kw_only=True, forbid_unknown_fields=True):
    """A subscription with its own settings."""

    name: limits.Name
    channels: Channels
    start: StartAt | UnsetType | None = UNSET
    push: Push | UnsetType | None = UNSET
    paused: bool | UnsetType | None = UNSET


class SeekRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Where to go on: earliest, latest, after an id, or at a time (RFC 3339, or 10m, 2h, 1d ago)."""

    to: StartAt


class BindRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Channels and patterns."""

    channels: Channels


def parse_subscription(name: str, raw: bytes, now: datetime, rules: PushRules) -> delivery.Definition:
    """The body of a PUT."""
    body = decode(raw, SubscriptionDefinition)
    refuse_other_name(body.name, name)
    return definition_of(name, body, now, rules)


def parse_patch(name: str, raw: bytes, rules: PushRules) -> tuple[tuple[str, ...] | None, delivery.Settings]:
    """The body of a PATCH: the new channels, if any, and settings; None clears one."""
    body = decode(raw, SubscriptionChange)
    refuse_other_name(body.name, name)
    if body.start is not UNSET:
        raise invalid("start", "says where a new subscription begins; seek moves one that is there")
    channels = None if body.channels is UNSET else _channels(body.channels)
    return channels, _settings(body, rules)


def parse_seek(raw: bytes, now: datetime) -> str:
    """The body of a seek, in the form of `Definition.start`."""
    return normal_start(decode(raw, SeekRequest).to, now, "to")


def parse_binding(raw: bytes) -> tuple[str, ...]:
    """The body of a bind or unbind: channels and patterns, each once."""
    return _channels(decode(raw, BindRequest).channels)


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


def definition_of(
    name: str, body: SubscriptionDefinition | SubscriptionEntry, now: datetime, rules: PushRules
) -> delivery.Definition:
    start = "latest" if body.start is UNSET or body.start is None else normal_start(body.start, now)
    settings = _settings(body, rules)
    own = {name: value for name, value in settings.items() if value is not None}
    return delivery.Definition(name, _channels(body.channels), start, own)


def _settings(
    body: SubscriptionDefinition | SubscriptionChange | SubscriptionEntry, rules: PushRules
) -> dict[str, Any]:
    """The given settings, with None for null."""
    settings = dict(subscription_values(body))
    if body.push is None:
        settings["push"] = None
    elif body.push is not UNSET:
        required = isinstance(body, SubscriptionDefinition)
        settings["push"] = push_value(body.push, rules, secret_required=required)
    return settings


def _channels(given: list[str]) -> tuple[str, ...]:
    for index, text in enumerate(given):
        check_pattern(text, f"channels[{index}]")
    check_budget(given, "channels")
    return tuple(dict.fromkeys(given))


class PushTo(msgspec.Struct):
    """Where deliveries are posted to. The secret is never shown."""

    url: str


class Stats(msgspec.Struct):
    """The state of a subscription in numbers."""

    lag: Count
    in_flight: Count
    redelivered: Count
    oldest_unacked_seconds: Annotated[float, Meta(ge=0)] | None
    dead_letters: Count
    delayed: Count
    waiting: Count
    acked: Count
    dead_lettered: Count
    removed_by_retention: Count
    purged: Count
    cursor: Count


class Subscription(msgspec.Struct, kw_only=True):
    """A durable subscription with the settings in force."""

    name: str
    channels: list[str]
    start: int | str
    ack_wait: float
    max_deliver: Count
    backoff: list[float]
    max_in_flight: Count
    ordering: Literal["key", "channel", "none"]
    message_ttl: float | UnsetType = UNSET
    max_backlog: Count | UnsetType = UNSET
    filter: Filter | UnsetType = UNSET
    dead_letter: DeadLetterTo | UnsetType = UNSET
    retain: bool | UnsetType = UNSET
    expires: float | UnsetType = UNSET
    push: PushTo | UnsetType = UNSET
    paused: bool
    created_at: Time
    origins: Annotated[
        dict[str, str], Meta(description="Where each setting comes from: own, default or policy:<name>.")
    ]
    stats: Stats | UnsetType = UNSET
    before: Annotated[Stats | None, Meta(description="With dry_run: the stats of now.")] | UnsetType = UNSET
    dry_run: bool | UnsetType = UNSET


class SubscriptionPage(msgspec.Struct):
    """A page of subscriptions."""

    subscriptions: list[Subscription]
    has_more: bool
    cursor: str | None


class SubscriptionLength(msgspec.Struct):
    """How many messages a subscription holds. If it is not `exact`, the numbers are lower bounds."""

    lag: Count
    in_flight: Count
    exact: bool


class Outstanding(msgspec.Struct, kw_only=True):
    """A message that is not settled."""

    state: State
    attempt: Count
    deadline: Time | UnsetType = UNSET
    due_at: Time | UnsetType = UNSET
    member: str | UnsetType = UNSET
    waits_for: Id | UnsetType = UNSET
    last_error: str | UnsetType = UNSET
    message: answers.Message


class OutstandingPage(msgspec.Struct):
    """A page of messages that are not settled."""

    messages: list[Outstanding]
    has_more: bool
    cursor: Id
    complete: bool


assert set(Stats.__struct_fields__) == {field.name for field in dataclasses.fields(delivery.Stats)}


async def list_subscriptions(request: Request[NamesQuery], subscriptions: AnnouncingSubscriptions) -> Answer:
    """List subscriptions by name. `cursor` goes into the next request; it is null on the last page."""
    regex = name_pattern(request, Noun.SUBSCRIPTION, Action.MANAGE, Action.CONSUME)
    limit = request.query.limit
    found = await subscriptions.port.page(request.namespace, regex, request.query.cursor, limit + 1)
    return page_by_name(SubscriptionPage, [(each.name, encode_subscription(each)) for each in found], limit)


async def get_subscription(request: Plain, subscriptions: AnnouncingSubscriptions) -> Answer:
    """Get a subscription: its definition and its stats."""
    return _answer(await subscriptions.port.get(request.namespace, request.name, stats=True))


async def get_subscription_length(request: Plain, subscriptions: AnnouncingSubscriptions) -> Answer:
    """Count the messages that a subscription holds, without the cost of its full statistics."""
    found = await subscriptions.port.length(request.namespace, request.name)
    return Answer(msgspec.json.encode(SubscriptionLength(found.lag, found.in_flight, found.exact)))


async def put_subscription(
    request: Plain, subscriptions: AnnouncingSubscriptions, push_rules: PushRules
) -> Answer:
    """Create a subscription. 200 if an equal one exists already, 409 if the name has another definition.
    `If-Match` replaces that one; `If-None-Match: *` only creates."""
    tags, absent = if_match(request.headers), if_absent(request.headers)
    raw = await read_json(request)
    rules = push_rules.of(request.principal)
    definition = parse_subscription(request.name, raw, datetime.now(UTC), rules)
    require_subscription(request.principal, request.name, definition.channels, definition.settings)
    made, was_made = await subscriptions.put(request.namespace, definition, if_match=tags, if_absent=absent)
    if made.settings.get("push", {}).get("by") != definition.settings.get("push", {}).get("by"):
        # The definition is equal; from now on it is pushed for who asks now.
        made = await subscriptions.patch(request.namespace, request.name, None, {"push": rules.by})
    return _answer(made, 201 if was_made else 200)


async def patch_subscription(
    request: Plain, subscriptions: AnnouncingSubscriptions, push_rules: PushRules
) -> Answer:
    """Change some members of a subscription; null clears a setting, so that a policy or the default applies
    again."""
    tags, raw = if_match(request.headers), await read_json(request)
    channels, settings = parse_patch(request.name, raw, push_rules.of(request.principal))
    require_subscription(request.principal, request.name, channels or (), settings)
    leads_elsewhere = settings.get("push") or settings.get("dead_letter")
    if channels is None and leads_elsewhere and request.principal.grants is not None:
        # What is read for the URL or the route is read for who gives it. No channel is bound in between.
        there = await subscriptions.port.get(request.namespace, request.name, stats=False)
        require_subscription(request.principal, request.name, there.channels, {})
        tags = bound(tags, there.tag)
    changed = await subscriptions.patch(request.namespace, request.name, channels, settings, if_match=tags)
    return _answer(changed)


async def delete_subscription(
    request: Request[DeleteQuery], subscriptions: AnnouncingSubscriptions
) -> Answer:
    """Delete a subscription, also its messages in flight. Its dead letters stay."""
    await subscriptions.delete(
        request.namespace,
        request.name,
        if_match=if_match(request.headers),
        if_empty=request.query.if_empty,
        if_unused=request.query.if_unused,
    )
    return NO_CONTENT


async def bind_subscription(request: Plain, subscriptions: AnnouncingSubscriptions) -> Answer:
    """Add channels or patterns to a subscription. Those bound already stay bound."""
    return await _bind(request, subscriptions, bound=True)


async def unbind_subscription(request: Plain, subscriptions: AnnouncingSubscriptions) -> Answer:
    """Remove channels or patterns from a subscription. At least one has to stay."""
    return await _bind(request, subscriptions, bound=False)


async def _bind(request: Plain, subscriptions: AnnouncingSubscriptions, *, bound: bool) -> Answer:
    tags, channels = if_match(request.headers), parse_binding(await read_json(request))
    require_subscription(request.principal, request.name, channels if bound else (), {})
    changed = await subscriptions.bind(request.namespace, request.name, channels, bound, if_match=tags)
    return _answer(changed)


async def seek_subscription(request: Request[DryRunQuery], subscriptions: AnnouncingSubscriptions) -> Answer:
    """Move a subscription to another place in the log. Messages in flight, delayed or waiting are forgotten;
    dead letters stay."""
    tags = if_match(request.headers)
    to = parse_seek(await read_json(request), datetime.now(UTC))
    if request.query.dry_run:
        tried = await subscriptions.port.try_seek(request.namespace, request.name, to, if_match=tags)
        return Answer(encode_try(*tried), headers=etag(tried[0].tag))
    return _answer(await subscriptions.seek(request.namespace, request.name, to, if_match=tags))


async def purge_subscription(request: Plain, subscriptions: AnnouncingSubscriptions, gate: Gate) -> Answer:
    """Remove all ready, delayed and waiting messages from a subscription, for good. Messages in flight stay,
    and the log keeps all."""
    tags = if_match(request.headers)
    gate.require(request.namespace)
    purged = await subscriptions.purge(request.namespace, request.name, if_match=tags)
    return Answer(msgspec.json.encode(answers.Purged(purged)))


async def pause_subscription(request: Plain, subscriptions: AnnouncingSubscriptions) -> Answer:
    """Pause a subscription: nothing is handed out until it is resumed. Leases, expiry and dead letters go
    on."""
    return await _pause(request, subscriptions, paused=True)


async def resume_subscription(request: Plain, subscriptions: AnnouncingSubscriptions) -> Answer:
    """Resume a subscription."""
    return await _pause(request, subscriptions, paused=False)


async def _pause(request: Plain, subscriptions: AnnouncingSubscriptions, *, paused: bool) -> Answer:
    tags = if_match(request.headers)
    changed = await subscriptions.pause(request.namespace, request.name, paused, if_match=tags)
    return _answer(changed)


async def list_outstanding(request: Request[OutstandingQuery], consumers: Consumers) -> Answer:
    """List the messages that a subscription has not settled, by id. It leases nothing and counts no attempt.
    `cursor` goes into the next request."""
    query = request.query
    state = query.state if isinstance(query.state, State) else None
    looked = await consumers.look(request.namespace, request.name, state, query.cursor, query.limit)
    messages = [_outstanding(each) for each in looked.messages]
    page = OutstandingPage(messages, looked.has_more, looked.cursor, looked.complete)
    return Answer(msgspec.json.encode(page))


def _answer(subscription: delivery.Subscription, status: int = 200) -> Answer:
    return Answer(encode_subscription(subscription), status, etag(subscription.tag))


def encode_subscription(subscription: delivery.Subscription) -> bytes:
    """A subscription with its settings in force, the origin of each, and its stats if they were asked for."""
    return msgspec.json.encode(_shown(subscription))


def encode_try(moved: delivery.Subscription, before: delivery.Stats | None) -> bytes:
    """The answer to a dry run of a seek: the subscription after it, and the stats of now."""
    shown = _shown(moved)
    shown.before, shown.dry_run = None if before is None else _stats(before), True
    return msgspec.json.encode(shown)


def _shown(subscription: delivery.Subscription) -> Subscription:
    return Subscription(
        name=subscription.name,
        channels=list(subscription.channels),
        start=shown_start(subscription.start),
        **shown_settings(subscription.settings),
        paused=subscription.paused,
        created_at=rfc3339(subscription.created_at_us).decode(),
        origins=dict(subscription.origins),
        stats=UNSET if subscription.stats is None else _stats(subscription.stats),
    )


def _stats(stats: delivery.Stats) -> Stats:
    return Stats(**{name: getattr(stats, name) for name in Stats.__struct_fields__})


def shown_start(text: str) -> str | int:
    """The start of a subscription as JSON: an id is a number."""
    return int(text) if text.isdigit() else text


def _outstanding(seen: delivery.Outstanding) -> Outstanding:
    at = UNSET if seen.at_us is None else rfc3339(seen.at_us).decode()
    leased = seen.state is State.LEASED
    return Outstanding(
        state=seen.state,
        attempt=seen.attempt,
        deadline=at if leased else UNSET,
        due_at=UNSET if leased else at,
        # A stream's number may have more bits than a JSON number keeps.
        member=UNSET if seen.member is None else f"{seen.member:x}" if seen.member else "pull",
        waits_for=or_unset(seen.waits_for),
        last_error=or_unset(seen.last_error),
        message=stored(encode_message(seen.message)),
    )
