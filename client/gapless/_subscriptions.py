"""Keeping durable subscriptions, as calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, TypedDict

from gapless._call import Call, Slice, asking, path, telling, time_text
from gapless._listing import listing
from gapless._subscription import (
    DeadLetterRoute,
    Filter,
    Ordering,
    Push,
    Start,
    Subscription,
    subscription_from,
)


class SubscriptionOptions(TypedDict, total=False):
    """The settings of a subscription. What is left out comes from a policy, else from the defaults.

    `ack_wait` (30): seconds a lease lasts. `max_deliver` (5): attempts before a message becomes a dead
    letter, 0 for no end. `backoff` (1, 5, 30): seconds to wait after the first nack, the second, and so on.
    `max_in_flight` (1000): unsettled deliveries at a time. `ordering` (`key`). `message_ttl`: seconds after
    which an unsettled message is a dead letter. `max_backlog`: messages that may lie unsettled. `push`: the
    service sends the messages to a URL.
    """

    ack_wait: float | None
    max_deliver: int | None
    backoff: Sequence[float] | None
    max_in_flight: int | None
    ordering: Ordering | None
    message_ttl: float | None
    max_backlog: int | None
    filter: Filter | None
    dead_letter: DeadLetterRoute | None
    push: Push | None


def create(
    name: str, channels: Sequence[str], start: Start | None, options: Mapping[str, Any]
) -> Call[Subscription]:
    """Makes the subscription, or finds the same definition there."""
    where = None if start is None else position(start)
    said = {"channels": _names(channels), "start": where, **_members(options)}
    body = {member: value for member, value in said.items() if value is not None}
    return asking("PUT", path("subscriptions", name), subscription_from, body)


def get(name: str) -> Call[Subscription]:
    """The settings in force, and where it stands."""
    return asking("GET", path("subscriptions", name), subscription_from)


def listed(pattern: str | None, page_size: int) -> Call[Slice[Subscription]]:
    """The subscriptions whose names match the pattern."""
    asked = {"pattern": pattern}
    return listing("/v1/subscriptions", "subscriptions", subscription_from, asked, page_size)


def update(name: str, channels: Sequence[str] | None, options: Mapping[str, Any]) -> Call[Subscription]:
    """Changes the settings that are said; None takes one away."""
    said = _members(options)
    if channels is not None:
        said["channels"] = _names(channels)
    return asking("PATCH", path("subscriptions", name), subscription_from, said)


def bind(name: str, channels: Sequence[str], bound: bool) -> Call[Subscription]:
    """Adds channels or patterns to those it reads, or takes them away."""
    verb = "bind" if bound else "unbind"
    return asking(
        "POST", path("subscriptions", name, verb), subscription_from, {"channels": _names(channels)}
    )


def delete(name: str) -> Call[None]:
    """Removes the subscription."""
    return telling("DELETE", path("subscriptions", name))


def seek(name: str, to: Start) -> Call[Subscription]:
    """Moves it. Not repeated when it may have been done: what was settled since would be forgotten again."""
    body = {"to": position(to)}
    return asking("POST", path("subscriptions", name, "seek"), subscription_from, body, repeatable=False)


def pause(name: str, paused: bool) -> Call[Subscription]:
    """Stops handing out, or goes on."""
    verb = "pause" if paused else "resume"
    return asking("POST", path("subscriptions", name, verb), subscription_from)


def position(start: Start) -> int | str:
    """Where to begin, as JSON. Raises `ValueError` for a time without a zone."""
    return time_text("a start", start) if isinstance(start, datetime) else start


def _names(channels: Sequence[str]) -> list[str]:
    """One name where a list is asked for would become a list of its letters."""
    return [channels] if isinstance(channels, str) else list(channels)


def _members(options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as JSON members; one that is None stays as null."""
    unknown = set(options) - set(SubscriptionOptions.__annotations__)
    if unknown:
        raise TypeError(f"no setting of a subscription: {', '.join(sorted(unknown))}")
    return {name: _member(value) for name, value in options.items()}


def _member(value: Any) -> Any:
    if isinstance(value, Push):
        return {"url": value.url} | ({} if value.secret is None else {"secret": value.secret})
    if isinstance(value, Filter):
        return {name: _names(texts) for name, texts in asdict(value).items() if texts}
    return asdict(value) if isinstance(value, DeadLetterRoute) else value
