"""Writes messages as publications of the client protocol, and deliveries as pushes, in whole frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from app.faces.websocket.framing import Framing
from app.message.deliveries import gap
from subscriptions.domain.delivery import Loss
from subscriptions.domain.goodbye import Goodbye
from subscriptions.domain.model import Message
from subscriptions.engine.entry import Encode, Entry
from subscriptions.engine.live.live_subscription import Ephemeral, Gap, HistoryChanged, Ready

_encode: Final = msgspec.json.Encoder().encode


class SeqWire:
    """The messages of one channel. Their offset is the seq."""

    shared: Final = True

    def __init__(self, framing: Framing) -> None:
        self.name = framing.wire()
        self._framing = framing

    def frame(self, entry: Entry) -> bytes:
        channel = entry.channel.encode()
        body = entry.body[:-1]
        said = b'{"push":{"channel":"%b","pub":%b,"offset":%d}}}' % (channel, body, entry.seq)
        return self._framing.frame(said)


class IdWire:
    """The messages of several channels, followed under one name. Their offset is the id."""

    shared: Final = False

    def __init__(self, channel: str, framing: Framing) -> None:
        self.name = framing.wire(channel)
        self._framing = framing
        self._channel = _encode(channel)

    def frame(self, entry: Entry) -> bytes:
        body = entry.body[:-1]
        said = b'{"push":{"channel":%b,"pub":%b,"offset":%d}}}' % (self._channel, body, entry.id)
        return self._framing.frame(said)


def publication(message: Message, encode: Encode) -> bytes:
    """A message of one channel in the answer to a command."""
    return b'%b,"offset":%d}' % (encode(message)[:-1], message.seq)


def push(channel: str, member: bytes, content: bytes) -> bytes:
    """Something that the server says about a channel."""
    return b'{"push":{"channel":%b,"%b":%b}}' % (_encode(channel), member, content)


def event(channel: str, said: Ephemeral | Gap | HistoryChanged | Ready) -> bytes:
    """An event of a live subscription. An ephemeral message is a publication without an offset; the rest
    are extensions, which clients of the protocol pass over."""
    match said:
        case Ephemeral(body, is_marker):
            return push(channel, b"marker" if is_marker else b"pub", body)
        case Gap():
            return push(channel, b"gap", _encode(gap(said.channel, said.first_seq, said.missed)))
        case HistoryChanged():
            return push(channel, b"gap", _changed(said))
        case Ready():
            return push(channel, b"ready", b'{"cursor":%d}' % said.cursor)


def member_push(subscription: str, member: bytes, content: bytes) -> bytes:
    """Something that the server says to a member of a durable subscription."""
    return b'{"push":{"subscription":"%b","%b":%b}}' % (subscription.encode(), member, content)


def member_frames(
    framing: Framing, subscription: str, losses: Sequence[Loss], deliveries: Sequence[bytes]
) -> bytes:
    """Gaps and deliveries, each in a frame of its own: clients limit the length of a message."""
    gaps = [_encode(gap(loss.channel, loss.first_seq, loss.missed)) for loss in losses]
    said = [member_push(subscription, b"gap", content) for content in gaps]
    said += [member_push(subscription, b"delivery", content) for content in deliveries]
    return b"".join(map(framing.frame, said))


def ended(subscription: str, reason: Goodbye, lost: HistoryChanged | None) -> list[bytes]:
    """Why the server ends a member, after the ids in doubt."""
    said = [] if lost is None else [member_push(subscription, b"gap", _changed(lost))]
    return [*said, member_push(subscription, b"goodbye", _encode({"reason": reason.value}))]


def _changed(said: HistoryChanged) -> bytes:
    changed: dict[str, Any] = {"reason": "history_changed", "ids": [said.first_id, said.last_id]}
    if said.channel is not None:
        changed["channel"] = said.channel
    return _encode(changed)
