"""Turns rows into domain values."""

from __future__ import annotations

from typing import Any

import msgspec

from subscriptions.domain.delivery import Tags
from subscriptions.domain.model import Channel, Message, Retention, microseconds
from subscriptions.domain.selection import Selection
from subscriptions.ports import HistoryQuery


def message(row: Any, channel: str) -> Message:
    """A row of `messages` as a value."""
    data, headers, expires_at, change = row["data"], row["headers"], row["expires_at"], row["change"]
    return Message(
        id=row["id"],
        channel=channel,
        seq=row["seq"],
        type=row["type"],
        key=row["key"],
        data=None if data is None else data.encode(),
        binary=row["binary"],
        headers=headers.encode() if headers else b"",
        sender=row["sender"],
        created_at_us=microseconds(row["created_at"]),
        expires_at_us=None if expires_at is None else microseconds(expires_at),
        change=None if change is None else change.encode(),
    )


def filter_of(query: Selection | HistoryQuery) -> tuple[list[str] | None, list[str] | None, str | None]:
    """Types, keys and changes as arguments of a statement; None for each that leaves out nothing."""
    changes = None if query.changes == "all" else query.changes
    return list(query.types) or None, list(query.keys) or None, changes


def channel(row: Any) -> Channel:
    """A row of the `described_channel` and `channels` blocks as a value; only the former has a tag."""
    return Channel(
        namespace=row["namespace"],
        name=row["name"],
        last_id=row["last_id"],
        last_seq=row["last_seq"],
        first_seq=row["first_seq"],
        trimmed_id=row["trimmed_id"],
        created_at_us=microseconds(row["created_at"]),
        retention=Retention(row["max_age"], row["max_messages"]),
        message_ttl=row["message_ttl"],
        origins=msgspec.json.decode(row["origins"]),
        tag=row.get("tag") or "",
    )


def tag_list(tags: Tags | None) -> list[str] | None:
    """Tags as an argument of a statement."""
    return None if tags is None else list(tags)
