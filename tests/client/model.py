"""A channel as the tests imagine it: numbered messages, and what an honest service sends for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any


def message(
    message_id: int, channel: str = "chat.lobby", seq: int | None = None, **members: Any
) -> dict[str, Any]:
    """The JSON of a message."""
    return {
        "id": message_id,
        "channel": channel,
        "seq": seq if seq is not None else message_id,
        "type": "message",
        "data": {"n": message_id},
        "created_at": "2026-11-20T12:00:00.123456Z",
    } | members


def event(data: Any, kind: str | None = None, event_id: int | None = None) -> bytes:
    """One block of an event stream."""
    lines = [f"event: {kind}"] if kind else []
    lines += [f"id: {event_id}"] if event_id is not None else []
    return "\n".join([*lines, f"data: {json.dumps(data)}", "", ""]).encode()


def blocks(messages: Sequence[dict[str, Any]]) -> list[bytes]:
    """A block for each message, as the service writes them."""
    return [event(one, event_id=one["id"]) for one in messages]


def delivery(
    message_id: int, *, lease_seconds: float = 30.0, attempt: int = 1, **members: Any
) -> dict[str, Any]:
    """The JSON of a delivery, leased for so long from now on; its receipt is `r-<message id>-<attempt>`."""
    return {
        "receipt": f"r-{message_id}-{attempt}",
        "attempt": attempt,
        "deadline": in_seconds(lease_seconds),
        "message": message(message_id, **members),
    }


def deliveries(*message_ids: int, lease_seconds: float = 30.0, attempt: int = 1) -> bytes:
    """A block for each delivery, as the service writes them."""
    made = [delivery(one, lease_seconds=lease_seconds, attempt=attempt) for one in message_ids]
    return b"".join(event(one, "delivery") for one in made)


def in_seconds(seconds: float) -> str:
    """A time so long from now, as the service writes it."""
    at = datetime.now(UTC) + timedelta(seconds=seconds)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def ready(cursor: int) -> bytes:
    return event({"cursor": cursor}, "ready", cursor)


def gap(channel: str, first_seq: int, missed: int) -> bytes:
    return event({"channel": channel, "first_seq": first_seq, "missed": missed}, "gap")


def goodbye(reason: str) -> bytes:
    return event({"reason": reason}, "goodbye")


def lines(messages: Sequence[dict[str, Any]]) -> list[bytes]:
    """A line for each message, as history is streamed."""
    return [json.dumps(one).encode() + b"\n" for one in messages]


def problem(status: int, code: str, *, retryable: bool = False, **members: Any) -> dict[str, Any]:
    """The body of a refusal."""
    return {
        "type": f"/problems/{code}",
        "title": code,
        "status": status,
        "detail": f"{code} it is",
        "code": code,
        "retryable": retryable,
    } | members
