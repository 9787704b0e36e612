"""The events of a run in a compact form: each attempt to publish, and each reader's deliveries.

A delivery that equals the other deliveries of its id takes eight bytes, the id. Any other is stored whole.
So 200 readers of 200,000 messages fit in memory.
"""

from __future__ import annotations

import hashlib
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

UNKNOWN = 0
"""An id or a seq that the publisher did not learn. Real ones start at 1."""


class Outcome(IntEnum):
    """What the publisher knows. Of several attempts with one key, the greatest value counts."""

    FAIL = 0
    INFO = 1
    OK = 2


@dataclass(frozen=True, slots=True)
class Odd:
    """A delivery that differs from an earlier one of the same id, at `position` of its cursor."""

    position: int
    id: int
    channel: str
    seq: int
    digest: int


@dataclass(frozen=True, slots=True)
class Gap:
    """The server announced that `missed` messages just below `first_seq` are lost."""

    channel: str
    first_seq: int
    missed: int

    def covers(self, channel: str, seq: int) -> bool:
        """Whether the loss of this message was announced."""
        return channel == self.channel and self.first_seq - self.missed <= seq < self.first_seq


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault began or ended, at a monotonic time in nanoseconds."""

    name: str
    on: bool
    at_ns: int


@dataclass(slots=True)
class Cursor:
    """One reader across all its connections. It must get everything after the id `start`.

    A fresh cursor reads the log from the start after the run. What it reads counts as stored.
    """

    name: str
    patterns: tuple[str, ...]
    start: int = 0
    fresh: bool = False
    ids: array[int] = field(default_factory=lambda: array("q"))
    gaps: list[Gap] = field(default_factory=list)
    odd: list[Odd] = field(default_factory=list)
    resumes: list[tuple[int, int]] = field(default_factory=list)
    """For each reconnect, the position in `ids` and the last id that the reader sent."""


class Change(NamedTuple):
    """What a message does to an earlier one of its channel: to `target`, or to all originals up to `through`.

    An annotation has a mode, a name, whoever made it ("": nobody), and a key ("": none).
    """

    target: int
    action: str
    through: int = 0
    mode: str = ""
    annotator: str = ""
    name: str = ""
    key: str = ""
    remove: bool = False

    @property
    def is_original(self) -> bool:
        """Whether the message is an original nevertheless: a reply."""
        return self.action == "reply"


class State(NamedTuple):
    """An original after all changes. `data` is a digest, 0 if it was deleted; `annotations` is JSON whose
    members are sorted."""

    version: int
    data: int
    deleted: bool
    replies: int
    annotations: str


@dataclass(slots=True)
class Shown:
    """The originals of channels as somebody shows them, with ids above `start`.

    Either the service shows them with `view=latest` (`is_view`), or a reader has folded what it received.
    """

    name: str
    patterns: tuple[str, ...]
    start: int = 0
    is_view: bool = False
    ids: array[int] = field(default_factory=lambda: array("q"))
    odd: dict[int, State] = field(default_factory=dict)
    """The states that differ from the first one shown of that original."""


@dataclass(slots=True)
class Log:
    """Every message that was seen, by id, as it was when it was first seen."""

    names: list[str] = field(default_factory=list)
    number: dict[str, int] = field(default_factory=dict)
    row: dict[int, int] = field(default_factory=dict)
    channel: array[int] = field(default_factory=lambda: array("i"))
    seq: array[int] = field(default_factory=lambda: array("q"))
    digest: array[int] = field(default_factory=lambda: array("q"))
    data: dict[int, int] = field(default_factory=dict)
    """The digest of a message's data alone."""
    changes: dict[int, Change] = field(default_factory=dict)
    """Of the messages that have a target."""

    def is_original(self, message_id: int) -> bool:
        """Whether a message changes no other: an ordinary one, or a reply."""
        change = self.changes.get(message_id)
        return change is None or change.is_original

    def intern(self, channel: str) -> int:
        """The number of a channel in this history."""
        number = self.number.setdefault(channel, len(self.names))
        if number == len(self.names):
            self.names.append(channel)
        return number

    def agrees(self, message_id: int, channel: str, seq: int, digest: int) -> bool:
        """Whether a message equals the first one seen with its id. The first one is stored."""
        row = self.row.get(message_id)
        number = self.intern(channel)
        if row is None:
            self.row[message_id] = len(self.seq)
            self.channel.append(number)
            self.seq.append(seq)
            self.digest.append(digest)
            return True
        return self.channel[row] == number and self.seq[row] == seq and self.digest[row] == digest


@dataclass(slots=True)
class Attempts:
    """Every attempt to publish, in the order of the calls."""

    channel: array[int] = field(default_factory=lambda: array("i"))
    digest: array[int] = field(default_factory=lambda: array("q"))
    outcome: bytearray = field(default_factory=bytearray)
    id: array[int] = field(default_factory=lambda: array("q"))
    key: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.outcome)

    def outcome_of(self, attempt: int) -> Outcome:
        """What the publisher knows of an attempt. One without an answer may have been stored."""
        return Outcome(self.outcome[attempt])


@dataclass(slots=True)
class History:
    """One run. `in_order`: each channel had one publisher, which never had two attempts in flight. Messages
    with a target may come from others too."""

    seed: int = 0
    in_order: bool = False
    log: Log = field(default_factory=Log)
    attempts: Attempts = field(default_factory=Attempts)
    cursors: list[Cursor] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    told: Cursor = field(default_factory=lambda: Cursor("publishers", ()))
    """The ids in the answers to publishers. They are compared with the log like deliveries."""
    expected: dict[int, int] = field(default_factory=dict)
    """The version that a confirmed change expected of its target, by the id of the change."""
    states: dict[int, State] = field(default_factory=dict)
    """The first state shown of each original."""
    shown: list[Shown] = field(default_factory=list)

    def invoke(self, channel: str, digest: int, key: str | None = None) -> int:
        """Note a publish before it is sent. Returns the number of the attempt. `key` makes it idempotent."""
        attempt = len(self.attempts)
        self.attempts.channel.append(self.log.intern(channel))
        self.attempts.digest.append(digest)
        self.attempts.outcome.append(Outcome.INFO)
        self.attempts.id.append(UNKNOWN)
        if key is not None:
            self.attempts.key[attempt] = key
        return attempt

    def ok(self, attempt: int, message_id: int = UNKNOWN, seq: int = UNKNOWN) -> None:
        """Note that a publish was confirmed, with its id and seq if the answer had them."""
        self.attempts.outcome[attempt] = Outcome.OK
        self.attempts.id[attempt] = message_id
        if message_id != UNKNOWN:
            channel = self.log.names[self.attempts.channel[attempt]]
            self.deliver(self.told, message_id, channel, seq, self.attempts.digest[attempt])

    def info(self, attempt: int) -> None:
        """Note no answer, or a 5xx: the message may be stored once or not at all."""
        self.attempts.outcome[attempt] = Outcome.INFO

    def fail(self, attempt: int) -> None:
        """Note a 4xx: the message must never be seen."""
        self.attempts.outcome[attempt] = Outcome.FAIL

    def cursor(self, name: str, patterns: tuple[str, ...], start: int = 0, fresh: bool = False) -> Cursor:
        """A new reader, which must get every matching message with an id above `start`."""
        cursor = Cursor(name, patterns, start, fresh)
        self.cursors.append(cursor)
        return cursor

    def deliver(self, cursor: Cursor, message_id: int, channel: str, seq: int, digest: int) -> bool:
        """Note a delivery of one message to one reader. Returns whether it equals the first one of its id."""
        agrees = self.log.agrees(message_id, channel, seq, digest)
        if not agrees:
            cursor.odd.append(Odd(len(cursor.ids), message_id, channel, seq, digest))
        cursor.ids.append(message_id)
        return agrees

    def receive(self, cursor: Cursor, message_id: int, message: dict[str, Any]) -> None:
        """Note a delivery of a message in the JSON of the service, with what it changes."""
        agrees = self.deliver(cursor, message_id, message["channel"], message["seq"], digest_of(message))
        if agrees and message_id not in self.log.data:
            self.log.data[message_id] = data_digest(message)
            if "target" in message:
                self.log.changes[message_id] = change_of(message)

    def show(self, shown: Shown, message_id: int, state: State) -> None:
        """Note how one original is shown."""
        if self.states.setdefault(message_id, state) != state:
            shown.odd[message_id] = state
        shown.ids.append(message_id)

    def gap(self, cursor: Cursor, gap: Gap) -> None:
        """Note an announced loss."""
        cursor.gaps.append(gap)

    def resume(self, cursor: Cursor, last_id: int) -> None:
        """Note that a reader reconnected with the last id it saw."""
        cursor.resumes.append((len(cursor.ids), last_id))

    def fault(self, name: str, on: bool) -> None:
        """Note that a fault begins or ends now."""
        self.faults.append(Fault(name, on, time.monotonic_ns()))

    def readers(self) -> Iterator[Cursor]:
        """The readers that followed the run live."""
        return (cursor for cursor in self.cursors if not cursor.fresh)

    def fresh(self) -> Iterator[Cursor]:
        """The readers that read the log after the run."""
        return (cursor for cursor in self.cursors if cursor.fresh)


# --- the content of a message as one number


CHANGING = ("target", "action", "through", "annotation", "mode", "remove")
"""The members of a message that say what it changes."""


def digest(kind: str, key: str | None, data: Any, changing: tuple[Any, ...] = ()) -> int:
    """The signed 64-bit digest of what the publisher sets: type, key and data, and what it changes.

    Member order and white space of the JSON do not count, since a store may keep the value instead
    of the text.
    """
    return _hash([kind, key, data, *changing])


def digest_of(message: dict[str, Any]) -> int:
    """The digest of a message in the JSON of the service."""
    changing = tuple(message.get(name) or None for name in CHANGING) if "target" in message else ()
    return digest(message.get("type", "message"), message.get("key"), _data(message), changing)


def data_digest(message: dict[str, Any]) -> int:
    """The digest of a message's data alone."""
    return _hash(_data(message))


def change_of(message: dict[str, Any]) -> Change:
    """What a message with a target does to it."""
    mode, annotator, name, key = (message.get(n) or "" for n in ("mode", "sender", "annotation", "key"))
    remove, through = message.get("remove") is True, message.get("through") or 0
    return Change(message["target"], message["action"], through, mode, annotator, name, key, remove)


def state_of(original: dict[str, Any]) -> State:
    """The state of an original in the JSON of `view=latest`."""
    deleted = original.get("deleted") is True
    data = 0 if deleted else data_digest(original)
    return State(original["version"], data, deleted, original["replies"], as_text(original["annotations"]))


def as_text(annotations: dict[str, Any]) -> str:
    """A summary of annotations with its members in order."""
    return msgspec.json.encode(annotations, order="sorted").decode()


def _data(message: dict[str, Any]) -> Any:
    return message["data"] if "data" in message else message.get("data_base64")


def _hash(value: Any) -> int:
    text = msgspec.json.encode(value, order="sorted")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True)
