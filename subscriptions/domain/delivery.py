"""The values of durable subscriptions: definitions, deliveries, receipts, dead letters. All are immutable.

A definition is passed on as the JSON members that the client sent. The database resolves own settings,
policies and defaults in the transaction that needs them, so no process holds a copy that could be stale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from subscriptions.domain.errors import Code
from subscriptions.domain.model import Message, NewMessage
from subscriptions.domain.word import Word

Settings = Mapping[str, Any]
"""Checked members of a definition, as JSON values; seconds are numbers. An absent member is not set."""

Tags = tuple[str, ...]
"""Tags of definitions: a change is made only if the definition has one of them. `*`: any tag."""

SUBSCRIPTION_SETTINGS = (
    "ack_wait",
    "max_deliver",
    "backoff",
    "max_in_flight",
    "ordering",
    "message_ttl",
    "max_backlog",
    "filter",
    "dead_letter",
    "retain",
    "expires",
    "push",
)


class Reason(StrEnum):
    """Why a message became a dead letter."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAX_DELIVER = "max_deliver"
    MAX_BACKLOG = "max_backlog"
    HOPS = "hops"


class AppliesTo(StrEnum):
    """What a policy applies to."""

    CHANNELS = "channels"
    SUBSCRIPTIONS = "subscriptions"


def without_order(settings: Settings) -> Settings:
    """Settings to compare: `channels`, and `types` and `keys` of a filter, as sets, also in the `definition`
    of a policy."""
    found = dict(settings)
    for name in ("channels", "types", "keys"):
        if name in found:
            found[name] = frozenset(found[name])
    for name in ("filter", "definition"):
        if name in found:
            found[name] = without_order(found[name])
    return found


@dataclass(frozen=True, slots=True)
class Definition:
    """What a client asks a subscription to be: its own settings, without policies and defaults."""

    name: str
    channels: tuple[str, ...]
    start: str = "latest"
    """`earliest`, `latest`, the digits of an id, or an RFC 3339 time in UTC."""
    settings: Settings = field(default_factory=dict, repr=False)
    """They are left out of `repr`, because `push` holds a secret."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Where a subscription stands, read in one snapshot. Counts of messages."""

    lag: int
    in_flight: int
    delayed: int
    waiting: int
    redelivered: int
    acked: int
    dead_lettered: int
    removed_by_retention: int
    purged: int
    dead_letters: int
    oldest_unacked_seconds: float | None
    cursor: int


@dataclass(frozen=True, slots=True)
class Length:
    """`lag`: how many messages are neither settled nor in flight; `in_flight`: how many are. Where it is not
    `exact`, there are at least this many."""

    lag: int
    in_flight: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription with the settings in force. `origins` says where each setting comes from: `own`,
    `default` or `policy:<name>`."""

    id: int
    namespace: str
    name: str
    channels: tuple[str, ...]
    start: str
    paused: bool
    created_at_us: int
    settings: Settings = field(repr=False)
    origins: Mapping[str, str]
    stats: Stats | None = None
    tag: str = ""
    """Each change of the definition gives it a new tag; policies and deliveries do not change the tag."""


class Receipt(NamedTuple):
    """Names one lease of one message. `lease` is a fence: a later lease of the message has another number.
    `holder` is the process that streams the delivery (0: no process does)."""

    subscription_id: int
    message_id: int
    lease: int
    holder: int = 0


class Delivery(NamedTuple):
    """One handing of one message to one member. `deadline_us` in microseconds since the Unix epoch.
    `company`: the message is in doubt, and the member that holds it may hold this many in all."""

    message: Message
    lease: int
    attempt: int
    deadline_us: int
    member: int = 0
    company: int | None = None


class Hand(NamedTuple):
    """Where one message of a claim goes: the number of a stream (0: a pull), and how many it then holds."""

    member: int
    place: int


@dataclass(frozen=True, slots=True)
class Touched:
    """A channel that a decision of the database published to, and its newest message at that moment."""

    namespace: str
    channel: str
    channel_id: int
    last_id: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class Loss:
    """Retention removed `missed` messages of a channel before they were settled; the oldest one left is
    `first_seq`. `number` orders losses; `since` is the number of the oldest loss that this one includes."""

    channel: str
    first_seq: int
    missed: int
    channel_id: int
    since: int
    number: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """The result of a claim. `retry_at_us`: when the next message becomes due by time alone, if known.
    `more`: the claim stopped at a bound of work, not because there was no more. `gone`: no such subscription.
    `doubt`: a message is in doubt, and may be for other hands than these. `losses`: losses of which no member
    was told yet."""

    deliveries: tuple[Delivery, ...] = ()
    retry_at_us: int | None = None
    more: bool = False
    gone: bool = False
    paused: bool = False
    touched: tuple[Touched, ...] = ()
    doubt: bool = False
    losses: tuple[Loss, ...] = ()


class State(StrEnum):
    """The state of a message that a subscription has not settled."""

    READY = "ready"
    WAITING = "waiting"
    DELAYED = "delayed"
    LEASED = "leased"


@dataclass(frozen=True, slots=True)
class Outstanding:
    """A message that a subscription has not settled, as a look shows it.

    `attempt`: how often it was handed out. `at_us`: the deadline, or when it becomes due. `member`: the
    stream that has it, 0 for a pull. `waits_for`: the message of its lane that comes first.
    """

    message: Message
    state: State
    attempt: int
    at_us: int | None = None
    member: int | None = None
    waits_for: int | None = None
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class Looked:
    """A page of outstanding messages by id: all of them up to `cursor`. Not `complete`: there are more,
    beyond the range that a subscription with an ordering looks ahead."""

    messages: tuple[Outstanding, ...]
    has_more: bool
    cursor: int
    complete: bool = True


class Settlement(Word):
    """What became of one receipt."""

    ACKED = "acked"
    NACKED = "nacked"
    RELEASED = "released"
    EXTENDED = "extended"
    LEASE_EXPIRED = "lease_expired"
    UNKNOWN = "unknown"


class Settled(NamedTuple):
    """The result for one receipt. `dead_letter`: the entry that a nack made; `deadline_us`: the deadline
    after an extend."""

    status: Settlement
    dead_letter: int | None = None
    deadline_us: int | None = None


@dataclass(frozen=True, slots=True)
class Nack:
    """How to give messages back. `delay` in seconds; None: the subscription's backoff."""

    delay: float | None = None
    dead_letter: bool = False
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message a subscription gave up on. `journey` is the JSON list of all its deaths, this one included;
    `published` is the JSON object of its copy in the dead-letter channel."""

    id: int
    subscription: str
    reason: Reason
    attempts: int
    last_error: str | None
    created_at_us: int
    journey: bytes
    message: Message
    published: bytes | None = None
    unroutable: str | None = None


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Selects dead letters; None matches all. `before_us`: made before this time. `ids`: only these."""

    namespace: str
    subscription: str | None = None
    channel: str | None = None
    reason: Reason | None = None
    before_us: int | None = None
    ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """Settings for everything that a pattern matches. The higher priority wins, then the lesser name."""

    name: str
    pattern: str
    applies_to: AppliesTo
    priority: int
    definition: Settings
    tag: str = field(default="", compare=False)
    """Each change gives it a new tag."""


@dataclass(frozen=True, slots=True)
class ChannelDefinition:
    """A channel's own settings."""

    name: str
    settings: Settings


@dataclass(frozen=True, slots=True)
class Definitions:
    """All definitions of a namespace, in order of names. `paused` names the paused subscriptions."""

    channels: tuple[ChannelDefinition, ...] = ()
    subscriptions: tuple[Definition, ...] = ()
    policies: tuple[Policy, ...] = ()
    paused: frozenset[str] = frozenset()
    tag: str = field(default="", compare=False)
    """Each change of any of them gives a new tag."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between an existing definition and the one asked for. `before`: None if it is new."""

    kind: str
    name: str
    before: Settings | None = field(repr=False)
    after: Settings = field(repr=False)


Moment = tuple[int | None, float | None]
"""When a message is to be published: microseconds since the Unix epoch, or seconds from now."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A message that is to be published later."""

    id: int
    message: NewMessage
    deliver_at_us: int
    created_at_us: int
    withheld: bool = False
    """Whether it waits for somebody to promote or cancel it: the credential that asked for it had ended when
    it was due, or it changes another message and was refused."""
    refused: Code | None = None
    """Why it was refused, if it was."""


def by_subscription(receipts: Sequence[Receipt]) -> list[list[Receipt]]:
    """The receipts of each subscription, in their order."""
    parts: dict[int, list[Receipt]] = {}
    for receipt in receipts:
        parts.setdefault(receipt.subscription_id, []).append(receipt)
    return list(parts.values())
