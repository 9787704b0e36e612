"""The types of the answers. The documents of the API are made of them, and clients can be.

Messages, positions and deliveries are built from stored bytes, without these types; tests read every answer
as its type. A later version may add members, so unknown members are allowed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from subscriptions.domain.model import MAX_ID

T = TypeVar("T")

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


def or_unset(value: T | None) -> T | UnsetType:
    """A member that is left out where there is none."""
    return UNSET if value is None else value


def stored(text: bytes) -> Any:
    """JSON that is stored, or encoded, already. It stands for a member of any type."""
    return msgspec.Raw(text)


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


class Changing(msgspec.Struct, kw_only=True):
    """What a message says that changes an earlier one of its channel."""

    target: Annotated[Id, Meta(description="The message that it changes.")] | UnsetType = UNSET
    action: Literal["update", "delete", "reply", "annotate"] | UnsetType = UNSET
    through: Annotated[Id, Meta(description="A deletion hides all originals to here.")] | UnsetType = UNSET
    annotation: str | UnsetType = UNSET
    mode: Literal["total", "distinct", "unique", "flag"] | UnsetType = UNSET
    remove: bool | UnsetType = UNSET


class Message(Changing, kw_only=True):
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


class RetentionGap(msgspec.Struct):
    """Retention removed `missed` messages before they were settled or seen."""

    channel: str
    first_seq: Count
    missed: Count


class Purged(msgspec.Struct):
    """How many were removed."""

    purged: Count


# Dead letters and scheduled messages.


# Policies and definitions.


# Operating.


# Events of streams.
