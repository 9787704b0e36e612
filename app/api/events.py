"""The types of the events of streams, for the documents."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from app.api.answers import Base64, Count, HistoryGap, Id, Json, Time
from subscriptions.domain.goodbye import Goodbye


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


class StreamJoin(msgspec.Struct):
    """A client joined a channel or left it."""

    channel: str
    action: Literal["join", "leave"]
    client: str
    user: str | None
    at: Time


class StreamPresence(msgspec.Struct):
    """Clients joined or left, too many to be told one by one; so many are there now."""

    channel: str
    action: Literal["changed"]
    clients: Count
