"""Calls for messages that are published later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gapless._call import Call, Slice, asking, json_of, path, telling, time_text
from gapless._calls.listing import listing
from gapless._calls.publish import (
    ChangeOptions,
    MessageOptions,
    as_new_message,
    key_headers,
    member,
    posted,
    was_replayed,
)
from gapless._errors import ProtocolError
from gapless._models import NewMessage, Payload, Published, change_from, payload_of, published_from
from gapless._retry import Reply

Time = float | datetime | str
"""When a message is published: a number of seconds from now, an aware datetime, or RFC 3339 text."""


class ScheduleOptions(MessageOptions, ChangeOptions, total=False):
    """The options of `MessageOptions` and `ChangeOptions`; `ttl`, in seconds, counts from `deliver_at`.
    `idempotency_key` and `expected_version` are as for any publish."""

    ttl: float | None
    idempotency_key: str | None
    expected_version: int | None


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A message that is published at `deliver_at`, when it gets its id.

    A read of scheduled messages fills all fields; the answer to a publish only identifies the message.
    `replayed`: an earlier attempt with the same key stored it. `withheld`: it was not published then, and is
    only when somebody promotes it. It changes another message and was `refused`, with this code, or the
    credential that asked for it had ended.
    """

    scheduled_id: str
    channel: str
    deliver_at: datetime
    type: str | None = None
    key: str | None = None
    data: Payload = None
    headers: Mapping[str, str] = field(default_factory=dict)
    ttl: float | None = None
    replayed: bool = False
    withheld: bool = False
    refused: str | None = None
    target: int | None = None
    action: str | None = None
    through: int | None = None
    annotation: str | None = None
    mode: str | None = None
    remove: bool = False
    sender: str | None = None


def schedule(
    channel: str,
    data: Payload,
    new_key: Callable[[], str],
    *,
    delay: float | None = None,
    deliver_at: datetime | str | None = None,
    ttl: float | None = None,
    idempotency_key: str | None = None,
    expected_version: int | None = None,
    **options: Any,
) -> Call[Scheduled]:
    """Schedules one message. If its time is past, it is published at once."""
    body = member(NewMessage(data, ttl=ttl, **options))
    for time in (delay, deliver_at):
        body |= {} if time is None else _time(time)
    headers = key_headers(idempotency_key or new_key(), None, expected_version)
    return posted(path("channels", channel, "messages"), body, headers, _answer)


def schedule_many(
    channel: str,
    messages: Iterable[tuple[Time, NewMessage | Payload]],
    new_key: Callable[[], str],
    *,
    idempotency_key: str | None = None,
) -> Call[list[Scheduled]]:
    """Schedules several messages, all or none, each at its own time."""
    body = [{**member(as_new_message(message)), **_time(time)} for time, message in messages]
    headers = key_headers(idempotency_key or new_key(), None)
    return posted(path("channels", channel, "messages"), body, headers, _answers)


def _time(time: Time) -> dict[str, Any]:
    """The JSON member for this time. Raises `ValueError` for a time without a zone."""
    if isinstance(time, datetime):
        return {"deliver_at": time_text("deliver_at", time)}
    return {"deliver_at": time} if isinstance(time, str) else {"delay": time}


def listed(channel: str | None, page_size: int) -> Call[Slice[Scheduled]]:
    """The messages still to be published, to one channel or to any."""
    return listing("/v1/scheduled", "scheduled", scheduled_from, {"channel": channel}, page_size)


def get(scheduled_id: str | int) -> Call[Scheduled]:
    """One scheduled message."""
    return asking("GET", path("scheduled", scheduled_id), scheduled_from)


def cancel(scheduled_id: str | int) -> Call[None]:
    """Removes it unpublished."""
    return telling("DELETE", path("scheduled", scheduled_id))


def promote(scheduled_id: str | int) -> Call[Published]:
    """Publishes it now. It is not repeated: a repetition would find nothing and fail."""
    where = path("scheduled", scheduled_id, "promote")
    return asking("POST", where, lambda raw: published_from(raw, replayed=False), repeatable=False)


def scheduled_from(raw: Any, *, replayed: bool = False) -> Scheduled:
    """A `Scheduled` from its JSON object. Raises `ProtocolError`."""
    try:
        return Scheduled(
            scheduled_id=str(raw["scheduled_id"]),
            channel=raw["channel"],
            deliver_at=datetime.fromisoformat(raw["deliver_at"]),
            type=raw.get("type"),
            key=raw.get("key"),
            data=payload_of(raw),
            headers=raw.get("headers") or {},
            ttl=raw.get("ttl"),
            replayed=replayed,
            withheld=raw.get("withheld") is True,
            refused=raw.get("refused"),
            sender=raw.get("sender"),
            **change_from(raw),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"not a scheduled message: {raw!r:.200}") from error


def _answers(reply: Reply) -> list[Scheduled]:
    answer = json_of(reply)
    if not isinstance(answer, dict) or not isinstance(answer.get("messages"), list):
        raise ProtocolError(f"not the answer to a schedule: {answer!r:.200}", status=reply.status)
    return [scheduled_from(raw, replayed=was_replayed(reply)) for raw in answer["messages"]]


def _answer(reply: Reply) -> Scheduled:
    return scheduled_from(json_of(reply), replayed=was_replayed(reply))
