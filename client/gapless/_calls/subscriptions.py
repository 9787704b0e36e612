"""Calls that manage durable subscriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

from gapless._call import (
    Call,
    Slice,
    asking,
    changing,
    matching,
    params_from,
    path,
    tagged,
    telling,
    time_text,
    trying,
)
from gapless._calls.listing import listing
from gapless._calls.subscription import (
    DeadLetterRoute,
    Filter,
    Length,
    Ordering,
    Push,
    Subscription,
    length_from,
    subscription_from,
)
from gapless._errors import ProtocolError
from gapless._start import Start


class SubscriptionOptions(TypedDict, total=False):
    """The settings of a subscription, defaults in parentheses. A policy may replace the defaults.

    `ack_wait` (30): seconds that a lease lasts. `max_deliver` (5): attempts before a message becomes a dead
    letter, 0 for no limit. `backoff` (1, 5, 30): seconds to wait after the first nack, the second, and so on.
    `max_in_flight` (1000): unsettled deliveries at a time. `ordering` (`key`). `message_ttl`: seconds after
    which an unsettled message becomes a dead letter. `max_backlog`: the most messages that may be unsettled.
    `retain`: retention waits until messages are settled. `expires`: seconds without use after which the
    subscription is removed. `push`: the service sends the messages to a URL.
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


def create(
    name: str,
    channels: Sequence[str],
    start: Start | None,
    options: Mapping[str, Any],
    if_match: str | None = None,
) -> Call[Subscription]:
    """Creates the subscription, finds an equal one, or replaces the one that has this tag."""
    begin = None if start is None else position(start)
    said = {"channels": _names(channels), "start": begin, **_members(options)}
    body = {member: value for member, value in said.items() if value is not None}
    return _changing("PUT", path("subscriptions", name), body, if_match)


def get(name: str) -> Call[Subscription]:
    """The settings in force, and the stats."""
    return tagged(asking("GET", path("subscriptions", name), subscription_from))


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
    """Changes the given settings; None removes one."""
    said = _members(options)
    if channels is not None:
        said["channels"] = _names(channels)
    return _changing("PATCH", path("subscriptions", name), said, if_match)


def bind(name: str, channels: Sequence[str], bound: bool, if_match: str | None = None) -> Call[Subscription]:
    """Adds channels or patterns to those that it reads, or removes them."""
    where = path("subscriptions", name, "bind" if bound else "unbind")
    return _changing("POST", where, {"channels": _names(channels)}, if_match)


def _changing(method: str, where: str, body: Any, if_match: str | None) -> Call[Subscription]:
    return tagged(changing(method, where, subscription_from, body, if_match))


def delete(
    name: str, *, if_match: str | None = None, if_empty: bool = False, if_unused: bool = False
) -> Call[None]:
    """Removes the subscription."""
    asked = {"if_empty": "true" if if_empty else None, "if_unused": "true" if if_unused else None}
    where = path("subscriptions", name)
    return telling("DELETE", where, params_from(asked), headers=matching(if_match))


def purge(name: str, if_match: str | None = None) -> Call[int]:
    """Removes all messages not in flight. Not repeated if it may have been done: newer ones would go too."""

    def decode(raw: Any) -> int:
        if not isinstance(raw, dict) or not isinstance(raw.get("purged"), int):
            raise ProtocolError(f"not the answer to a purge: {raw!r:.200}")
        return int(raw["purged"])

    where = path("subscriptions", name, "purge")
    return asking("POST", where, decode, repeatable=False, headers=matching(if_match))


def seek(name: str, start: Start, dry_run: bool, if_match: str | None = None) -> Call[Subscription]:
    """Moves it. Not repeated if it may have been done: what was settled since would be forgotten."""
    body, where = {"to": position(start)}, path("subscriptions", name, "seek")
    headers, params = matching(if_match), trying(dry_run)
    return tagged(
        asking("POST", where, subscription_from, body, params=params, repeatable=dry_run, headers=headers)
    )


def pause(name: str, paused: bool, if_match: str | None = None) -> Call[Subscription]:
    """Pauses or resumes it."""
    where = path("subscriptions", name, "pause" if paused else "resume")
    return _changing("POST", where, None, if_match)


def position(start: Start) -> int | str:
    """The start as JSON. Raises `ValueError` for a time without a zone."""
    return time_text("a start", start) if isinstance(start, datetime) else start


def _names(channels: Sequence[str]) -> list[str]:
    """The names as a list. A single name is made a list of one, not a list of its letters."""
    return [channels] if isinstance(channels, str) else list(channels)


def _members(options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as JSON members; None becomes null."""
    unknown = set(options) - set(SubscriptionOptions.__annotations__)
    if unknown:
        raise TypeError(f"no setting of a subscription: {', '.join(sorted(unknown))}")
    return {name: _member(value) for name, value in options.items()}


def _member(value: Any) -> Any:
    if isinstance(value, Push):
        return {"url": value.url} | ({} if value.secret is None else {"secret": value.secret})
    if isinstance(value, Filter):
        lists = {"types": _names(value.types), "keys": _names(value.keys)}
        changes = {} if value.changes == "all" else {"changes": value.changes}
        return {name: texts for name, texts in lists.items() if texts} | changes
    if isinstance(value, DeadLetterRoute):
        return {"channel": value.channel} | ({} if value.keep is True else {"keep": value.keep})
    return value
