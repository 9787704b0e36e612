"""Keeping durable subscriptions, as calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any, TypedDict

from gapless._call import Call, Slice, asking, matching, params_from, path, telling, time_text, trying
from gapless._errors import ProtocolError
from gapless._listing import listing
from gapless._retry import Reply
from gapless._subscription import (
    DeadLetterRoute,
    Filter,
    Length,
    Ordering,
    Push,
    Start,
    Subscription,
    length_from,
    subscription_from,
)


class SubscriptionOptions(TypedDict, total=False):
    """The settings of a subscription. What is left out comes from a policy, else from the defaults.

    `ack_wait` (30): seconds a lease lasts. `max_deliver` (5): attempts before a message becomes a dead
    letter, 0 for no end. `backoff` (1, 5, 30): seconds to wait after the first nack, the second, and so on.
    `max_in_flight` (1000): unsettled deliveries at a time. `ordering` (`key`). `message_ttl`: seconds after
    which an unsettled message is a dead letter. `max_backlog`: messages that may lie unsettled. `retain`:
    retention waits until they are settled. `expires`: seconds without use after which the subscription is
    removed. `push`: the service sends the messages to a URL.
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
    retain: bool | None
    expires: float | None
    push: Push | None


def _tagged(call: Call[Subscription]) -> Call[Subscription]:
    """With the tag that the answer's header tells."""

    def decode(reply: Reply) -> Subscription:
        return replace(call.decode(reply), etag=reply.headers.get("etag"))

    return replace(call, decode=decode)


def create(
    name: str,
    channels: Sequence[str],
    start: Start | None,
    options: Mapping[str, Any],
    if_match: str | None = None,
) -> Call[Subscription]:
    """Makes the subscription, or finds the same definition there, or replaces the one of this tag."""
    begin = None if start is None else position(start)
    said = {"channels": _names(channels), "start": begin, **_members(options)}
    body = {member: value for member, value in said.items() if value is not None}
    return _changing("PUT", path("subscriptions", name), body, if_match)


def get(name: str) -> Call[Subscription]:
    """The settings in force, and where it stands."""
    return _tagged(asking("GET", path("subscriptions", name), subscription_from))


def length(name: str) -> Call[Length]:
    """How many messages it holds."""
    return asking("GET", path("subscriptions", name, "length"), length_from)


def listed(pattern: str | None, page_size: int) -> Call[Slice[Subscription]]:
    """The subscriptions whose names match the pattern."""
    asked = {"pattern": pattern}
    return listing("/v1/subscriptions", "subscriptions", subscription_from, asked, page_size)


def update(
    name: str, channels: Sequence[str] | None, options: Mapping[str, Any], if_match: str | None = None
) -> Call[Subscription]:
    """Changes the settings that are said; None takes one away."""
    said = _members(options)
    if channels is not None:
        said["channels"] = _names(channels)
    return _changing("PATCH", path("subscriptions", name), said, if_match)


def bind(name: str, channels: Sequence[str], bound: bool, if_match: str | None = None) -> Call[Subscription]:
    """Adds channels or patterns to those it reads, or takes them away."""
    where = path("subscriptions", name, "bind" if bound else "unbind")
    return _changing("POST", where, {"channels": _names(channels)}, if_match)


def _changing(method: str, where: str, body: Any, if_match: str | None) -> Call[Subscription]:
    """Not repeated where it may have been done to the tag named: that is another by then."""
    repeatable, headers = if_match is None, matching(if_match)
    return _tagged(asking(method, where, subscription_from, body, repeatable=repeatable, headers=headers))


def delete(
    name: str, *, if_match: str | None = None, if_empty: bool = False, if_unused: bool = False
) -> Call[None]:
    """Removes the subscription."""
    asked = {"if_empty": "true" if if_empty else None, "if_unused": "true" if if_unused else None}
    where = path("subscriptions", name)
    return telling("DELETE", where, params_from(asked), headers=matching(if_match))


def purge(name: str) -> Call[int]:
    """Removes what waits. Not repeated when it may have been done: what came since would go too."""

    def decode(raw: Any) -> int:
        if not isinstance(raw, dict) or not isinstance(raw.get("purged"), int):
            raise ProtocolError(f"not the answer to a purge: {raw!r:.200}")
        return int(raw["purged"])

    return asking("POST", path("subscriptions", name, "purge"), decode, repeatable=False)


def seek(name: str, to: Start, dry_run: bool) -> Call[Subscription]:
    """Moves it. Not repeated when it may have been done: what was settled since would be forgotten again."""
    body, where = {"to": position(to)}, path("subscriptions", name, "seek")
    return asking("POST", where, subscription_from, body, params=trying(dry_run), repeatable=dry_run)


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
