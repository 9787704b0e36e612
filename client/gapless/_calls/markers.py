"""Calls for markers: how far users have come in channels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gapless._call import Call, Request, Slice, json_body, json_of, path
from gapless._calls.listing import listing
from gapless._errors import ProtocolError
from gapless._retry import Reply


@dataclass(frozen=True, slots=True)
class Marker:
    """How far a user has come in a channel: every message up to `id` counts as marked. `name` says in what
    sense: `read`, `delivered`, or an own one."""

    channel: str
    user: str
    name: str
    id: int
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Unread:
    """A channel after a user's marker, `id`. `unread`: how many originals there are not deleted. `last_id`
    and `last_seq` are those of the channel's newest message."""

    channel: str
    id: int
    unread: int
    last_id: int
    last_seq: int


def move(channel: str, message_id: int, name: str, user: str | None, force: bool) -> Call[Marker]:
    """Moves one marker."""
    where = path("channels", channel, "markers", name)
    return _sent("PUT", where, _members(message_id, user, force), lambda reply: marker_from(json_of(reply)))


def move_all(
    markers: Iterable[tuple[str, int]], name: str, user: str | None, force: bool
) -> Call[list[Marker]]:
    """Moves markers of several channels, all or none."""
    body = [{"channel": channel, "name": name, **_members(id_, user, force)} for channel, id_ in markers]
    return _sent("POST", "/v1/markers", {"markers": body}, _several)


def unread(user: str | None, pattern: str | None, name: str, page_size: int) -> Call[Slice[Unread]]:
    """The channels in which a user has a marker."""
    asked = {"user": user, "pattern": pattern, "name": name}
    return listing("/v1/markers", "markers", _unread_from, asked, page_size)


def readers(channel: str, name: str, page_size: int) -> Call[Slice[Marker]]:
    """The markers of all users in a channel."""
    return listing(path("channels", channel, "markers", name), "markers", marker_from, {}, page_size)


def marker_from(raw: Any) -> Marker:
    """A `Marker` from its JSON object. Raises `ProtocolError`."""
    try:
        at = datetime.fromisoformat(raw["updated_at"])
        return Marker(raw["channel"], raw["user"], raw["name"], int(raw["id"]), at)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"not a marker: {raw!r:.200}") from error


def _unread_from(raw: Any) -> Unread:
    try:
        return Unread(
            raw["channel"], int(raw["id"]), int(raw["unread"]), int(raw["last_id"]), int(raw["last_seq"])
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"not what is unread: {raw!r:.200}") from error


def _members(message_id: int, user: str | None, force: bool) -> dict[str, Any]:
    return {"id": message_id} | ({} if user is None else {"user": user}) | ({"force": True} if force else {})


def _sent(method: str, where: str, body: Any, decode: Any) -> Call[Any]:
    headers = {"Content-Type": "application/json"}
    return Call(Request(method, where, headers=headers, content=json_body(body)), decode)


def _several(reply: Reply) -> list[Marker]:
    answer = json_of(reply)
    if not isinstance(answer, dict) or not isinstance(answer.get("markers"), list):
        raise ProtocolError(f"not a list of markers: {answer!r:.200}")
    return [marker_from(raw) for raw in answer["markers"]]
