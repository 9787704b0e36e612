"""The values of the log: messages, positions, channels. All are immutable. Payload bytes are opaque here:
faces encode and decode them.

Values that are made for each message or request are named tuples and structs: making a frozen dataclass takes
three times as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from subscriptions.domain.watermark import Fence

MAX_ID = 2**53 - 1
"""Ids stay below 2^53 so that every JSON reader can hold one exactly."""
GIVEN_BY_SERVER: Final = frozenset({"id", "seq", "created_at", "expires_at"})
"""The members of a message that no publisher sets."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The Unix epoch."""
_MICROSECOND: Final = timedelta(microseconds=1)


def microseconds(time: datetime) -> int:
    """An aware time as microseconds since the Unix epoch, exactly."""
    return (time - EPOCH) // _MICROSECOND


class Message(NamedTuple):
    """One stored message, as every reader sees it. Times are microseconds since the Unix epoch, UTC.

    Exactly one of `data` (JSON text on one line) and `binary` is set; `headers` is the text of a JSON
    object of strings, empty when there are none.
    """

    id: int
    channel: str
    seq: int
    type: str
    key: str | None
    data: bytes | None
    binary: bytes | None
    headers: bytes
    sender: str | None
    created_at_us: int
    expires_at_us: int | None
    change: bytes | None = None
    """The text of a JSON object: which message it changes, and how. None: it changes none."""

    @property
    def is_original(self) -> bool:
        """Whether it changes no other message: a reply changes none."""
        return self.change is None or b'"action":"reply"' in self.change

    @property
    def size_bytes(self) -> int:
        """Bytes of its payload and headers."""
        return len(self.data or b"") + len(self.binary or b"") + len(self.headers)


class Change(NamedTuple):
    """What a message does to an earlier one of its channel, its `target`.

    `text` is what readers get of it. With a `version`, the target must have been changed by that message
    last. `moderates`: whether its sender may change anybody's messages.
    """

    text: bytes
    version: int | None = None
    moderates: bool = False

    @property
    def is_edit(self) -> bool:
        """Whether it changes what another one has sent, and does not only add to it."""
        return b'"action":"update"' in self.text or b'"action":"delete"' in self.text


class Original(NamedTuple):
    """A message that changes none, as it is after all that changed it: with the data of its newest update; a
    deleted one has neither data nor binary. `version`: the id of the newest change, or its own."""

    message: Message
    version: int
    deleted: bool
    replies: int
    annotations: bytes
    """The text of a JSON object: how many there are, by name and mode."""


class NewMessage(NamedTuple):
    """A message not yet stored. `ttl` is in seconds; the rest is as in `Message`."""

    channel: str
    data: bytes | None
    binary: bytes | None = None
    type: str = "message"
    key: str | None = None
    headers: bytes = b""
    ttl: float | None = None
    ephemeral: bool = False
    sender: str | None = None
    change: Change | None = None


class Position(NamedTuple):
    """Where one stored message stands, as the publisher is told. Times are in microseconds."""

    id: int
    channel: str
    seq: int
    created_at_us: int
    expires_at_us: int | None = None


class Append(msgspec.Struct, frozen=True):
    """One publish request: messages that become visible together or not at all.

    `idempotency_key` and `fingerprint` (a hash of the whole request) come together. `expected_last_seq`
    is about the channel of the first message.
    """

    namespace: str
    messages: tuple[NewMessage, ...]
    idempotency_key: str | None = None
    fingerprint: bytes = b""
    expected_last_seq: int | None = None
    body_bytes: int | None = None
    """Bytes of the body these messages came in, if known: then `size_bytes` need not add up the messages."""
    expects_version: bool = False
    """Whether a message of it expects a version of its target."""

    @property
    def size_bytes(self) -> int:
        """A close upper estimate of the bytes that it takes to hold and send this request."""
        if self.body_bytes is not None:
            return self.body_bytes + 256 * len(self.messages)
        size = 256 * len(self.messages)
        for m in self.messages:
            size += len(m.data or b"") + len(m.binary or b"") + len(m.headers)
        return size


class Appended(msgspec.Struct, frozen=True):
    """A publish that is committed. `replayed` says that an earlier request with this key stored it."""

    positions: tuple[Position, ...]
    replayed: bool = False
    before: dict[str, tuple[int, int, int]] = msgspec.field(default_factory=dict)
    """Channel name → (channel id, last message id, last seq) just before this request's messages."""
    fence: Fence | None = None
    """The newest fence at the commit. None: it was put up at that moment, and is not known yet."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What a channel keeps: messages younger than `max_age` seconds, and the newest `max_messages`."""

    max_age: int | None = None
    max_messages: int | None = None


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel as the log sees it. `first_seq`: of the oldest message kept; `last_seq`: 0 while empty."""

    namespace: str
    name: str
    last_id: int
    last_seq: int
    first_seq: int
    trimmed_id: int
    created_at_us: int
    retention: Retention
    message_ttl: float | None
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where each setting in force comes from: `own` or `policy:<name>`."""
    tag: str = ""
    """Each change of its own settings gives it a new tag; policies and messages do not change the tag. Empty
    in a list."""
