"""The values that a caller gets, all immutable, and how they are read from JSON."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from gapless._errors import ProtocolError
from gapless._lost import Gap

Action = Literal["update", "delete", "reply", "annotate"]
"""What a message does to an earlier one of its channel."""
Mode = Literal["total", "distinct", "unique", "flag"]
"""How annotations count: each, one a sender and name, the last one of a sender, or whether there is any."""
Payload = Any
"""A message's data: any JSON value, or `bytes`, which are sent as `data_base64`."""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to publish. `ttl` is in seconds. `target` is the id of an earlier message of the channel, and
    `action` says what this one does to it; `through` is for delete, up to which id; `annotation`, `mode` and
    `remove` are for annotate. A moderator may send in the name of another `sender`. The service's limits
    apply to every field."""

    data: Payload
    type: str | None = None
    key: str | None = None
    headers: Mapping[str, str] | None = None
    ttl: float | None = None
    target: int | None = None
    action: Action | None = None
    through: int | None = None
    annotation: str | None = None
    mode: Mode | None = None
    remove: bool | None = None
    sender: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """A stored message. `id` orders all messages of the installation; `seq` is dense in the channel.
    `action` says what it does to an earlier message of the channel, its `target`."""

    id: int
    channel: str
    seq: int
    type: str
    key: str | None
    data: Payload
    headers: Mapping[str, str]
    sender: str | None
    created_at: datetime
    expires_at: datetime | None
    target: int | None = None
    action: str | None = None
    through: int | None = None
    annotation: str | None = None
    mode: str | None = None
    remove: bool = False


@dataclass(frozen=True, slots=True)
class Original(Message):
    """A message that changes no other, as it is after all changes: of `view="latest"`.

    `version` is the id of the newest message that changed it, or its own. A deleted one has no data.
    `annotations`: {name: {mode: how many}}, of names with keys also {"keys": {key: how many}}; a flag is
    True.
    """

    version: int = 0
    replies: int = 0
    annotations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Ephemeral:
    """A message for live subscribers only: it has no id and is never stored."""

    channel: str
    type: str
    key: str | None
    data: Payload
    headers: Mapping[str, str]
    sender: str | None


@dataclass(frozen=True, slots=True)
class Published:
    """Where a message was stored. `replayed` says that an earlier attempt with the same key stored it."""

    id: int
    channel: str
    seq: int
    created_at: datetime
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """A page of history. `cursor` is the id of its last message; the next page begins behind it.

    `lost`: the first and last id of messages up to `after` that may have been there and are not any more,
    because the log went back to an earlier moment. `head`: of `view="latest"`, the newest id of the channel
    at that moment; what is not in the page comes after it.
    """

    messages: tuple[Message, ...]
    has_more: bool
    cursor: int
    lost: tuple[int, int] | None = None
    head: int | None = None

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)


@dataclass(frozen=True, slots=True)
class Retention:
    """A channel's limits on what it keeps: messages younger than `max_age` whole seconds, and the newest
    `max_messages`. None is no limit.
    """

    max_age: int | None = None
    max_messages: int | None = None


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel. `last_seq` is 0 while it is empty; `first_seq` is the seq of the oldest message kept.

    `message_ttl` is in seconds, None when messages do not expire by themselves. `origins` says for each
    setting whether it is the channel's `own` or comes from `policy:<name>`. `etag`, for `if_match`, is set
    when one channel was asked for; each change of the channel's own settings changes it.
    """

    name: str
    last_id: int
    last_seq: int
    first_seq: int
    created_at: datetime | None = None
    retention: Retention = field(default_factory=Retention)
    message_ttl: float | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    etag: str | None = None


def message_from(raw: Any) -> Message:
    """A `Message` from its JSON object, an `Original` if it has a version; a missing member counts as null.
    Raises `ProtocolError`."""
    try:
        more = _folded(raw) if "version" in raw else {}
        return (Original if more else Message)(
            id=int(raw["id"]),
            channel=raw["channel"],
            seq=int(raw["seq"]),
            type=raw.get("type") or "message",
            key=raw.get("key"),
            data=payload_of(raw),
            headers=raw.get("headers") or {},
            sender=raw.get("sender"),
            created_at=datetime.fromisoformat(raw["created_at"]),
            expires_at=_time(raw.get("expires_at")),
            **change_from(raw),
            **more,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"not a message: {raw!r:.200}") from error


def change_from(raw: Any) -> dict[str, Any]:
    """The fields of a message that say what it changes, from its JSON object."""
    said = {name: raw.get(name) for name in ("target", "action", "through", "annotation", "mode")}
    return {**said, "remove": raw.get("remove") is True}


def ephemeral_from(raw: Any) -> Ephemeral:
    """An `Ephemeral` from its JSON object. Raises `ProtocolError`."""
    try:
        return Ephemeral(
            channel=raw["channel"],
            type=raw.get("type") or "message",
            key=raw.get("key"),
            data=payload_of(raw),
            headers=raw.get("headers") or {},
            sender=raw.get("sender"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"not an ephemeral message: {raw!r:.200}") from error


def gap_from(raw: Any) -> Gap:
    """A `Gap` from the data of a `gap` event. Raises `ProtocolError`."""
    try:
        if raw.get("reason") == "history_changed":
            first, last = raw["ids"]
            return Gap(raw.get("channel") or "", 0, 0, (int(first), int(last)))
        return Gap(raw["channel"], int(raw["first_seq"]), int(raw["missed"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"not a gap: {raw!r:.200}") from error


def published_from(raw: Any, *, replayed: bool) -> Published:
    """A `Published` from the answer to a publish. Raises `ProtocolError`."""
    try:
        created_at = datetime.fromisoformat(raw["created_at"])
        return Published(int(raw["id"]), raw["channel"], int(raw["seq"]), created_at, replayed)
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"not the answer to a publish: {raw!r:.200}") from error


def channel_from(raw: Any) -> Channel:
    """A `Channel` from its JSON object. Raises `ProtocolError`."""
    try:
        retention = raw.get("retention") or {}
        return Channel(
            name=raw["name"],
            last_id=int(raw.get("last_id") or 0),
            last_seq=int(raw.get("last_seq") or 0),
            first_seq=int(raw.get("first_seq") or 0),
            created_at=_time(raw.get("created_at")),
            retention=Retention(retention.get("max_age"), retention.get("max_messages")),
            message_ttl=raw.get("message_ttl"),
            origins=raw.get("origins") or {},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"not a channel: {raw!r:.200}") from error


def _folded(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "version": int(raw["version"]),
        "replies": int(raw.get("replies") or 0),
        "annotations": raw.get("annotations") or {},
        "deleted": raw.get("deleted") is True,
    }


def payload_of(raw: Mapping[str, Any]) -> Payload:
    """The data in the JSON of a message. Raises `ValueError` for invalid base64."""
    binary = raw.get("data_base64")
    return raw.get("data") if binary is None else b64decode(binary, validate=True)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
