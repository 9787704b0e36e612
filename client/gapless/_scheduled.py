"""Messages that are published later, as calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gapless._call import Call, Slice, asking, json_of, path, telling, time_text
from gapless._errors import ProtocolError
from gapless._listing import listing
from gapless._models import NewMessage, Payload, Published, payload_of, published_from
from gapless._publish import MessageOptions, key_headers, member, posted, was_replayed
from gapless._retry import Reply


class ScheduleOptions(MessageOptions, total=False):
    """As in `MessageOptions`; `ttl` in seconds counts from delivery. `idempotency_key` as for any publish."""

    ttl: float | None
    idempotency_key: str | None


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A message that is published at `deliver_at`, when it gets its id.

    What it holds is there where scheduled messages are read; the answer to a publish says only which it is.
    `replayed`: an earlier attempt with the same key stored it.
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


def schedule(
    channel: str,
    data: Payload,
    new_key: Callable[[], str],
    *,
    delay: float | None = None,
    deliver_at: datetime | str | None = None,
    ttl: float | None = None,
    idempotency_key: str | None = None,
    **options: Any,
) -> Call[Scheduled]:
    """One message for later; one whose time has come already is published at once."""
    body = member(NewMessage(data, ttl=ttl, **options))
    if delay is not None:
        body["delay"] = delay
    if deliver_at is not None:
        at = deliver_at
        body["deliver_at"] = time_text("deliver_at", at) if isinstance(at, datetime) else at
    headers = key_headers(idempotency_key or new_key(), None)
    return posted(path("channels", channel, "messages"), body, headers, _answer)


def listed(channel: str | None, page_size: int) -> Call[Slice[Scheduled]]:
    """What is still to be published, of one channel or all."""
    return listing("/v1/scheduled", "scheduled", scheduled_from, {"channel": channel}, page_size)


def get(scheduled_id: str | int) -> Call[Scheduled]:
    """One scheduled message."""
    return asking("GET", path("scheduled", scheduled_id), scheduled_from)


def cancel(scheduled_id: str | int) -> Call[None]:
    """Removes it unpublished."""
    return telling("DELETE", path("scheduled", scheduled_id))


def promote(scheduled_id: str | int) -> Call[Published]:
    """Publishes it now. A repetition would find nothing and fail, so there is none."""
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
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"not a scheduled message: {raw!r:.200}") from error


def _answer(reply: Reply) -> Scheduled:
    return scheduled_from(json_of(reply), replayed=was_replayed(reply))
