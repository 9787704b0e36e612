"""Dead letters, the messages that a subscription gave up on: calls that list, replay and remove them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict

from gapless._call import Call, Slice, asking, path, telling, time_text, trying
from gapless._calls.listing import listing
from gapless._errors import ProtocolError
from gapless._models import Message, Published, message_from, published_from

Reason = Literal["rejected", "expired", "max_deliver", "max_backlog", "hops"]
"""Why a message became a dead letter."""


@dataclass(frozen=True, slots=True)
class Death:
    """How often one subscription gave up on the message for one reason, and when first and last."""

    subscription: str
    channel: str
    reason: Reason
    count: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A copy of a message that a subscription gave up on. Retention does not remove it.

    `journey` holds all its deaths, this one included. `published` is its place in the dead-letter channel.
    `unroutable` says why it has no place there although a channel was set.
    """

    id: int
    subscription: str
    channel: str
    reason: Reason
    attempts: int
    last_error: str | None
    created_at: datetime
    journey: tuple[Death, ...]
    message: Message
    published: Published | None
    unroutable: str | None


@dataclass(frozen=True, slots=True)
class Replayed:
    """The entry `id` is gone, and its message was given back to its subscription."""

    id: int
    subscription: str
    message_id: int


@dataclass(frozen=True, slots=True)
class ReplayCounts:
    """How many entries were replayed, and how many were skipped because another replay held them."""

    replayed: int
    skipped: int


class DeadLetterOptions(TypedDict, total=False):
    """Which dead letters; without options, all."""

    subscription: str | None
    channel: str | None
    reason: Reason | None


def dead_letters(asked: Mapping[str, Any], page_size: int) -> Call[Slice[DeadLetter]]:
    """The entries, oldest first."""
    return listing("/v1/dead-letters", "dead_letters", dead_letter_from, _said(asked), page_size)


def dead_letter(entry_id: int) -> Call[DeadLetter]:
    """One entry."""
    return asking("GET", path("dead-letters", entry_id), dead_letter_from)


def delete(entry_id: int) -> Call[None]:
    """Removes an entry, and with it the message's copy."""
    return telling("DELETE", path("dead-letters", entry_id))


def replay(entry_id: int) -> Call[Replayed]:
    """Gives one message back. It is not repeated: a repetition would find no entry and fail."""
    return asking("POST", path("dead-letters", entry_id, "replay"), _replayed, repeatable=False)


def replay_all(
    asked: Mapping[str, Any],
    ids: Iterable[int] | None,
    count: int | None,
    rate: float | None,
    dry_run: bool,
) -> Call[ReplayCounts]:
    """Gives all matching messages back. It is not repeated: a repetition would count only the rest."""
    pace = {"ids": None if ids is None else list(ids), "max": count, "rate": rate}
    body = _said(asked) | {name: value for name, value in pace.items() if value is not None}
    where = path("dead-letters", "replay")
    return asking("POST", where, _counts, body, params=trying(dry_run), repeatable=dry_run)


def purge(older_than: float | str | datetime, asked: Mapping[str, Any]) -> Call[int]:
    """Removes all matching entries. It is not repeated: a repetition would count only the rest."""
    age = time_text("older_than", older_than) if isinstance(older_than, datetime) else older_than
    body = {"older_than": age, **_said(asked)}
    return asking("POST", path("dead-letters", "purge"), _purged, body, repeatable=False)


def dead_letter_from(raw: Any) -> DeadLetter:
    """A `DeadLetter` from its JSON object. Raises `ProtocolError`."""
    try:
        published = raw.get("published")
        return DeadLetter(
            id=int(raw["id"]),
            subscription=raw["subscription"],
            channel=raw["channel"],
            reason=raw["reason"],
            attempts=int(raw["attempts"]),
            last_error=raw.get("last_error"),
            created_at=datetime.fromisoformat(raw["created_at"]),
            journey=tuple(_death(death) for death in raw.get("journey") or ()),
            message=message_from(raw["message"]),
            published=None if published is None else _copy(published, raw["created_at"]),
            unroutable=raw.get("unroutable"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"not a dead letter: {raw!r:.200}") from error


def _death(raw: Any) -> Death:
    first_at, last_at = datetime.fromisoformat(raw["first_at"]), datetime.fromisoformat(raw["last_at"])
    return Death(raw["subscription"], raw["channel"], raw["reason"], int(raw["count"]), first_at, last_at)


def _copy(raw: Any, created_at: str) -> Published:
    """The copy's place. The transaction that made the entry also published the copy."""
    return published_from({"created_at": created_at, **raw}, replayed=False)


def _replayed(raw: Any) -> Replayed:
    try:
        return Replayed(int(raw["id"]), raw["subscription"], int(raw["message_id"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"not the answer to a replay: {raw!r:.200}") from error


def _counts(raw: Any) -> ReplayCounts:
    try:
        return ReplayCounts(int(raw["replayed"]), int(raw["skipped"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"not the answer to a replay: {raw!r:.200}") from error


def _purged(raw: Any) -> int:
    try:
        return int(raw["purged"])
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"not the answer to a purge: {raw!r:.200}") from error


def _said(asked: Mapping[str, Any]) -> dict[str, Any]:
    unknown = set(asked) - set(DeadLetterOptions.__annotations__)
    if unknown:
        raise TypeError(f"no way to choose dead letters: {', '.join(sorted(unknown))}")
    return {name: value for name, value in asked.items() if value is not None}
