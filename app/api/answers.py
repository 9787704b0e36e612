"""The types of the answers. The documents of the API are made of them, and clients can be.

Most answers are built from stored bytes without these types; tests read every answer as its type. A later
version may add members, so unknown members are allowed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.api.definition_bodies import PolicyDefinition
from app.api.settings import DeadLetterTo, Filter
from subscriptions.domain.delivery import Reason, State
from subscriptions.domain.goodbye import Goodbye
from subscriptions.domain.model import MAX_ID

Id = Annotated[int, Meta(ge=0, le=MAX_ID)]
Count = Annotated[int, Meta(ge=0)]
Time = Annotated[
    str,
    Meta(
        description="RFC 3339 in UTC.",
        examples=["2026-11-20T12:00:00.123456Z"],
        extra_json_schema={"format": "date-time"},
    ),
]
Json = Annotated[Any, Meta(description="Any JSON value.")]
Base64 = Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64"})]
Settled = Literal["acked", "nacked", "released", "extended", "lease_expired", "unknown"]


class FieldProblem(msgspec.Struct):
    """What is wrong with one member, parameter or receipt."""

    field: str
    message: str


class Problem(msgspec.Struct):
    """Why a request was refused, or failed (RFC 9457). Decide by `code`."""

    type: Annotated[str, Meta(examples=["urn:gapless:problem:invalid_request"])]
    title: str
    status: Annotated[int, Meta(ge=400, le=599)]
    detail: str
    code: Annotated[str, Meta(examples=["invalid_request"])]
    retryable: bool
    errors: list[FieldProblem] | UnsetType = UNSET


# The log.


class Position(msgspec.Struct):
    """Where a message was stored."""

    id: Annotated[Id, Meta(examples=[1042])]
    channel: Annotated[str, Meta(examples=["chat.lobby"])]
    seq: Annotated[Count, Meta(examples=[17])]
    created_at: Time


class Positions(msgspec.Struct):
    """Where messages were stored, in the order in which they were sent."""

    messages: list[Position]


class EphemeralSent(msgspec.Struct):
    """A message that was sent to live subscribers and not stored."""

    channel: str
    ephemeral: bool


class ScheduledAt(msgspec.Struct):
    """A message that will be published."""

    scheduled_id: Annotated[str, Meta(examples=["7"])]
    channel: str
    deliver_at: Time


class ScheduledAtAll(msgspec.Struct):
    """Messages that will be published, in the order in which they were sent."""

    messages: list[ScheduledAt]


class Message(msgspec.Struct, kw_only=True):
    """A message of the log. It has `data` or `data_base64`."""

    id: Annotated[Id, Meta(examples=[1042])]
    channel: Annotated[str, Meta(examples=["chat.lobby"])]
    seq: Annotated[Count, Meta(examples=[17])]
    type: Annotated[str, Meta(examples=["message"])]
    key: str | UnsetType = UNSET
    data: Json | UnsetType = UNSET
    data_base64: Base64 | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    sender: str | UnsetType = UNSET
    created_at: Time
    expires_at: Time | UnsetType = UNSET


class HistoryGap(msgspec.Struct):
    """Messages between two ids that a reader may have seen and the log does not hold any more."""

    reason: Literal["history_changed"]
    ids: Annotated[list[Id], Meta(min_length=2, max_length=2)]


class MessagePage(msgspec.Struct):
    """A page of history."""

    messages: list[Message]
    has_more: bool
    cursor: Id
    gap: HistoryGap | UnsetType = UNSET


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


# Durable subscriptions.


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


class Delivery(msgspec.Struct):
    """One message handed out to one member. Without `receipt` and `deadline` it is settled already."""

    attempt: Count
    message: Message
    receipt: str | UnsetType = UNSET
    deadline: Time | UnsetType = UNSET


class RetentionGap(msgspec.Struct):
    """Retention removed `missed` messages before they were settled or seen."""

    channel: str
    first_seq: Count
    missed: Count


class Deliveries(msgspec.Struct):
    """The leased deliveries, and the gaps that retention made."""

    deliveries: list[Delivery]
    gaps: list[RetentionGap] | UnsetType = UNSET


class Outstanding(msgspec.Struct, kw_only=True):
    """A message that is not settled."""

    state: State
    attempt: Count
    deadline: Time | UnsetType = UNSET
    due_at: Time | UnsetType = UNSET
    member: str | UnsetType = UNSET
    waits_for: Id | UnsetType = UNSET
    last_error: str | UnsetType = UNSET
    message: Message


class OutstandingPage(msgspec.Struct):
    """A page of messages that are not settled."""

    messages: list[Outstanding]
    has_more: bool
    cursor: Id
    complete: bool


class Result(msgspec.Struct):
    """The result of a receipt."""

    receipt: str
    status: Settled
    dead_letter: Id | UnsetType = UNSET
    deadline: Time | UnsetType = UNSET


class Results(msgspec.Struct):
    """One result per receipt, in order."""

    results: list[Result]


class Committed(msgspec.Struct):
    """The messages that a transaction published, and how many receipts it acked."""

    messages: list[Position]
    acked: Count


class Purged(msgspec.Struct):
    """How many were removed."""

    purged: Count


# Dead letters and scheduled messages.


class Death(msgspec.Struct):
    """How often one subscription gave up on a message for one reason."""

    subscription: str
    channel: str
    reason: Reason
    count: Count
    first_at: Time
    last_at: Time


class PublishedAt(msgspec.Struct):
    """Where the copy of a dead letter was published."""

    channel: str
    id: Id
    seq: Count


class DeadLetter(msgspec.Struct):
    """A message that a subscription gave up on."""

    id: Id
    subscription: str
    channel: str
    reason: Reason
    attempts: Count
    last_error: str | None
    created_at: Time
    journey: list[Death]
    message: Message
    published: PublishedAt | UnsetType = UNSET
    unroutable: str | UnsetType = UNSET


class DeadLetterPage(msgspec.Struct):
    """A page of dead letters."""

    dead_letters: list[DeadLetter]
    has_more: bool
    cursor: Id


class Replayed(msgspec.Struct):
    """A dead letter that was given back."""

    id: Id
    subscription: str
    message_id: Id


class ReplayedAll(msgspec.Struct):
    """How many dead letters were given back, and how many were skipped."""

    replayed: Count
    skipped: Count
    dry_run: bool | UnsetType = UNSET


class Scheduled(msgspec.Struct, kw_only=True):
    """A scheduled message. `ttl` counts from its time."""

    scheduled_id: str
    channel: str
    deliver_at: Time
    created_at: Time
    type: str
    key: str | UnsetType = UNSET
    data: Json | UnsetType = UNSET
    data_base64: Base64 | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    ttl: float | UnsetType = UNSET
    sender: str | UnsetType = UNSET


class ScheduledPage(msgspec.Struct):
    """A page of scheduled messages."""

    scheduled: list[Scheduled]
    has_more: bool
    cursor: Id


# Policies and definitions.


class Policy(PolicyDefinition, kw_only=True, forbid_unknown_fields=False):
    """Settings for everything that its pattern matches."""

    name: str
    priority: int


class Policies(msgspec.Struct):
    """All policies."""

    policies: list[Policy]


class Change(msgspec.Struct, kw_only=True):
    """A thing that was created or changed, before and after."""

    kind: Literal["channel", "subscription", "policy"]
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


# Operating.


class Alive(msgspec.Struct):
    """The process answers."""

    status: Literal["alive"]


class Ready(msgspec.Struct):
    """The service works."""

    status: Literal["ready"]
    redis: bool


# Events of streams.


class StreamReady(msgspec.Struct):
    """All history from before the stream began has been sent."""

    cursor: Id


class StreamGap(HistoryGap, kw_only=True):
    """A gap as in history, with the channel if the stream reads one channel."""

    channel: str | UnsetType = UNSET


class EphemeralMessage(msgspec.Struct, kw_only=True):
    """A message that is not stored."""

    channel: str
    type: str
    key: str | UnsetType = UNSET
    data: Json | UnsetType = UNSET
    data_base64: Base64 | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    sender: str | UnsetType = UNSET
    created_at: Time


class StreamGoodbye(msgspec.Struct):
    """The server ends a stream."""

    reason: Goodbye
