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
from subscriptions.domain.delivery import State
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


class RetentionGap(msgspec.Struct):
    """Retention removed `missed` messages before they were settled or seen."""

    channel: str
    first_seq: Count
    missed: Count


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


class Purged(msgspec.Struct):
    """How many were removed."""

    purged: Count


# Dead letters and scheduled messages.


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


# Events of streams.
