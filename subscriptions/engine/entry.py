"""A message as the live side holds it: the fields for routing, and its encoded forms, each made once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from subscriptions.domain.model import Message

Encode = Callable[[Message], bytes]
"""Message → its JSON text on one line, UTF-8."""

OVERHEAD_BYTES = 400
"""Rough cost of an entry without its texts, in bytes; used to bound the memory of feeds."""


class Entry:
    """One committed message. Every feed and reader in the process shares it, so it is never changed. Only a
    wire form is added when a reader first asks for it."""

    __slots__ = ("_frames", "body", "channel", "id", "is_change", "key", "namespace", "seq", "type")

    def __init__(
        self,
        id_: int,
        namespace: str,
        channel: str,
        seq: int,
        type_: str,
        key: str | None,
        body: bytes,
        is_change: bool = False,
    ) -> None:
        self.id = id_
        self.namespace = namespace
        self.channel = channel
        self.seq = seq
        self.type = type_
        self.key = key
        self.body = body
        self.is_change = is_change
        self._frames: dict[str, bytes] | None = None

    def __repr__(self) -> str:
        return f"Entry({self.id}: {self.channel}#{self.seq})"

    @property
    def size_bytes(self) -> int:
        return 2 * len(self.body) + OVERHEAD_BYTES

    def frame(self, wire: Wire) -> bytes:
        """This message as `wire` sends it."""
        if not wire.shared:
            return wire.frame(self)
        if self._frames is None:
            self._frames = {}
        frame = self._frames.get(wire.name)
        if frame is None:
            frame = self._frames[wire.name] = wire.frame(self)
        return frame


class Wire(Protocol):
    """How a face writes messages. `frame` must return bytes that can be concatenated. The frames of a
    `shared` wire are kept with their messages; such wires must be few."""

    @property
    def name(self) -> str: ...

    @property
    def shared(self) -> bool: ...

    def frame(self, entry: Entry) -> bytes: ...


def entry_of(namespace: str, message: Message, encode: Encode) -> Entry:
    """The entry of a stored message."""
    return Entry(
        message.id,
        namespace,
        message.channel,
        message.seq,
        message.type,
        message.key,
        encode(message),
        message.change is not None and not message.is_original,
    )
