"""JSON of subscriptions, deliveries, dead letters and policies as the service shows it, without nulls."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gapless_cli.output import change_json, data_json, message_json, moment, published_json

if TYPE_CHECKING:
    from gapless import DeadLetter, Imported, Message, Outstanding, Policy, Scheduled, Subscription

SETTINGS = (
    "ack_wait",
    "max_deliver",
    "backoff",
    "max_in_flight",
    "ordering",
    "message_ttl",
    "max_backlog",
    "expires",
)


def subscription_json(subscription: Subscription) -> dict[str, Any]:
    """A subscription with its settings in force and, if one was asked for, its stats. It has no secret."""
    shown: dict[str, Any] = {
        "name": subscription.name,
        "channels": subscription.channels,
        "start": subscription.start,
    }
    shown |= {name: getattr(subscription, name) for name in SETTINGS}
    shown["retain"] = subscription.retain or None
    if subscription.filter is not None:
        asked = subscription.filter
        filters: dict[str, Any] = {"types": list(asked.types), "keys": list(asked.keys)}
        filters["changes"] = None if asked.changes == "all" else asked.changes
        shown["filter"] = {name: value for name, value in filters.items() if value}
    if subscription.push is not None:
        shown["push"] = {"url": subscription.push.url}
    shown = said(shown)
    if subscription.dead_letter is not None:
        shown["dead_letter"] = {"channel": subscription.dead_letter.channel}
    shown |= {"paused": subscription.paused, "created_at": moment(subscription.created_at)}
    shown["origins"] = dict(subscription.origins)
    if subscription.etag is not None:
        shown["etag"] = subscription.etag
    if subscription.stats is not None:
        shown["stats"] = asdict(subscription.stats)
    if subscription.before is not None:
        shown["before"] = asdict(subscription.before)
    return shown


def delivery_json(receipt: str | None, attempt: int, message: Message) -> dict[str, Any]:
    """A delivery. Its deadline is left out, because it moves while the delivery is in hand."""
    named = {} if receipt is None else {"receipt": receipt}
    return {**named, "attempt": attempt, "message": message_json(message)}


def outstanding_json(seen: Outstanding) -> dict[str, Any]:
    """A message that is not settled, with its state."""
    shown = {
        "state": seen.state,
        "attempt": seen.attempt,
        "deadline": None if seen.deadline is None else moment(seen.deadline),
        "due_at": None if seen.due_at is None else moment(seen.due_at),
        "member": seen.member,
        "waits_for": seen.waits_for,
        "last_error": seen.last_error,
        "message": message_json(seen.message),
    }
    return said(shown)


def dead_letter_json(entry: DeadLetter) -> dict[str, Any]:
    """An entry with its journey and its message."""
    journey = [
        {**asdict(death), "first_at": moment(death.first_at), "last_at": moment(death.last_at)}
        for death in entry.journey
    ]
    shown = {
        "id": entry.id,
        "subscription": entry.subscription,
        "channel": entry.channel,
        "reason": entry.reason,
        "attempts": entry.attempts,
        "last_error": entry.last_error,
        "created_at": moment(entry.created_at),
        "journey": journey,
        "message": message_json(entry.message),
        "published": None if entry.published is None else published_json(entry.published),
        "unroutable": entry.unroutable,
    }
    return said(shown)


def policy_json(policy: Policy) -> dict[str, Any]:
    """A policy."""
    return said(asdict(policy))


def scheduled_json(scheduled: Scheduled) -> dict[str, Any]:
    """A scheduled message. The answer to a publish does not hold what was sent."""
    shown: dict[str, Any] = {
        "scheduled_id": scheduled.scheduled_id,
        "channel": scheduled.channel,
        "deliver_at": moment(scheduled.deliver_at),
    }
    if scheduled.type is None:
        return shown | ({"replayed": True} if scheduled.replayed else {})
    shown |= said(
        {"type": scheduled.type, "key": scheduled.key, "sender": scheduled.sender, "ttl": scheduled.ttl}
    )
    if scheduled.headers:
        shown["headers"] = dict(scheduled.headers)
    name = "data_base64" if isinstance(scheduled.data, bytes) else "data"
    shown |= {name: data_json(scheduled.data), **change_json(scheduled)}
    if scheduled.withheld:
        shown |= {"withheld": True} | said({"refused": scheduled.refused})
    return shown


def imported_json(imported: Imported) -> dict[str, Any]:
    """The result of an import, as the service answers."""
    diff = [
        {"kind": one.kind, "name": one.name, "from": one.before, "to": one.after} for one in imported.diff
    ]
    return {**asdict(imported), "diff": diff}


def said(members: dict[str, Any]) -> dict[str, Any]:
    """The members that are not null."""
    return {name: value for name, value in members.items() if value is not None}
