"""A durable subscription as immutable values, and how it is read from JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from gapless._errors import ProtocolError

Ordering = Literal["key", "channel", "none"]
"""Which messages are in flight one at a time: those of one channel and key, of one channel, or none."""
Changes = Literal["all", "none", "only"]
"""Whether messages that change others come with the rest, are left out, or are all that comes."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Only messages with one of these types and one of these keys are delivered; an empty list allows all.
    `changes`: with the messages that change others, without them, or only them."""

    types: Sequence[str] = ()
    keys: Sequence[str] = ()
    changes: Changes = "all"


@dataclass(frozen=True, slots=True)
class DeadLetterRoute:
    """Where dead letters are also published: a channel, or a template with `{channel}` and `{subscription}`.

    None: nowhere, even if a policy names a channel. `keep`: the seconds that they stay in the list of dead
    letters; True: until they are removed; False: only those stay that could not be published.
    """

    channel: str | None
    keep: bool | float = True


@dataclass(frozen=True, slots=True)
class Push:
    """The service sends each message to `url`, signed with `secret` (`whsec_…`), which it never shows."""

    url: str
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Stats:
    """The state of a subscription at one moment, in numbers of messages.

    `lag`: neither settled nor in flight. Of these, `delayed` wait for their time and `waiting` for an earlier
    message of their key. `dead_letters` are in the list now; `dead_lettered` is the total so far.
    `removed_by_retention` and `purged` were removed before they were settled. `oldest_unacked_seconds` is
    None when nothing is unsettled.
    """

    lag: int
    in_flight: int
    delayed: int
    waiting: int
    redelivered: int
    acked: int
    dead_letters: int
    dead_lettered: int
    removed_by_retention: int
    purged: int
    cursor: int
    oldest_unacked_seconds: float | None


@dataclass(frozen=True, slots=True)
class Length:
    """How many messages are neither settled nor in flight, and how many are in flight.

    If it is not `exact`, the numbers are lower bounds.
    """

    lag: int
    in_flight: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Subscription:
    """A durable subscription with the settings in force; times are in seconds.

    `origins` says for each setting whether it is the subscription's `own`, a `default`, or comes from
    `policy:<name>`. `max_deliver` 0 is no limit. `backoff` holds the waits after each nack. `stats` and
    `etag` are set when one subscription was asked for. `etag` is for `if_match`; each change of the
    definition changes it. After a dry run of a seek, `stats` shows the values after the seek and `before`
    those of now.
    """

    name: str
    channels: tuple[str, ...]
    start: int | str
    ack_wait: float
    max_deliver: int
    backoff: tuple[float, ...]
    max_in_flight: int
    ordering: Ordering
    message_ttl: float | None
    max_backlog: int | None
    filter: Filter | None
    dead_letter: DeadLetterRoute | None
    push: Push | None
    paused: bool
    created_at: datetime
    origins: Mapping[str, str]
    stats: Stats | None
    retain: bool = False
    expires: float | None = None
    etag: str | None = None
    before: Stats | None = None


def subscription_from(raw: Any) -> Subscription:
    """A `Subscription` from its JSON object. Raises `ProtocolError`."""
    try:
        stats, before = raw.get("stats"), raw.get("before")
        return Subscription(
            name=raw["name"],
            channels=tuple(raw["channels"]),
            start=raw["start"],
            ack_wait=raw["ack_wait"],
            max_deliver=int(raw["max_deliver"]),
            backoff=tuple(raw["backoff"]),
            max_in_flight=int(raw["max_in_flight"]),
            ordering=raw["ordering"],
            message_ttl=raw.get("message_ttl"),
            max_backlog=raw.get("max_backlog"),
            filter=_filter(raw.get("filter")),
            dead_letter=_route(raw.get("dead_letter")),
            push=_push(raw.get("push")),
            paused=bool(raw.get("paused")),
            created_at=datetime.fromisoformat(raw["created_at"]),
            origins=raw.get("origins") or {},
            stats=None if stats is None else _stats(stats),
            retain=bool(raw.get("retain")),
            expires=raw.get("expires"),
            before=None if before is None else _stats(before),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"not a subscription: {raw!r:.200}") from error


def length_from(raw: Any) -> Length:
    """A `Length` from its JSON object. Raises `ProtocolError`."""
    try:
        return Length(int(raw["lag"]), int(raw["in_flight"]), bool(raw["exact"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"not a length: {raw!r:.200}") from error


def _filter(raw: Any) -> Filter | None:
    if raw is None:
        return None
    return Filter(tuple(raw.get("types") or ()), tuple(raw.get("keys") or ()), raw.get("changes") or "all")


def _route(raw: Any) -> DeadLetterRoute | None:
    return None if raw is None else DeadLetterRoute(raw.get("channel"), raw.get("keep", True))


def _push(raw: Any) -> Push | None:
    return None if raw is None else Push(raw["url"], raw.get("secret"))


def _stats(raw: Any) -> Stats:
    oldest = raw.get("oldest_unacked_seconds")
    counts = {name: int(raw.get(name) or 0) for name in Stats.__dataclass_fields__}
    del counts["oldest_unacked_seconds"]
    return Stats(**counts, oldest_unacked_seconds=None if oldest is None else float(oldest))
