"""A message as JSON on one line: written around the stored bytes, without decoding them; and read again, for
faces that show it in another form."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final

import msgspec

from app.message.times import rfc3339
from subscriptions.domain.model import Message, NewMessage, Original, Position, microseconds

_encode: Final = msgspec.json.Encoder().encode


def encode_message(message: Message) -> bytes:
    """The message JSON of the protocol: one line of UTF-8, null members and empty headers left out."""
    if message.data is not None:
        payload = b',"data":' + message.data
    elif message.binary is not None:
        payload = b',"data_base64":"%b"' % b2a_base64(message.binary, newline=False)
    else:
        payload = b""  # It was deleted.
    rest = b""
    if message.headers and message.headers != b"{}":
        rest = b',"headers":' + message.headers
    if message.sender is not None:
        rest += b',"sender":' + _quoted(message.sender)
    if message.expires_at_us is not None:
        rest += b',"expires_at":"%b"' % rfc3339(message.expires_at_us)
    if message.change is not None:
        rest += b"," + message.change[1:-1]
    key = b"" if message.key is None else b',"key":' + _encode(message.key)
    return b'{"id":%d,"channel":"%b","seq":%d,"type":%b%b%b%b,"created_at":"%b"}' % (
        message.id,
        message.channel.encode(),  # A channel name holds nothing that JSON would escape.
        message.seq,
        _quoted(message.type),
        key,
        payload,
        rest,
        rfc3339(message.created_at_us),
    )


def encode_original(original: Original) -> bytes:
    """A message as it is after all changes: as `encode_message`, and what became of it."""
    deleted = b',"deleted":true' if original.deleted else b""
    told = (encode_message(original.message)[:-1], original.version, original.replies)
    return b'%b,"version":%d,"replies":%d,"annotations":%b%b}' % (*told, original.annotations, deleted)


def encode_positions(positions: Sequence[Position]) -> bytes:
    """The positions of the messages of one commit, joined by commas: `{"id", "channel", "seq", "created_at"}`
    for each. Their common parts are made once."""
    created_at_us = positions[0].created_at_us
    tail = b',"created_at":"%b"}' % rfc3339(created_at_us)
    middles: dict[str, bytes] = {}
    parts = []
    for id_, channel, seq, at_us, _ in positions:
        assert at_us == created_at_us, "one commit has one time"
        middle = middles.get(channel)
        if middle is None:
            middle = middles[channel] = b',"channel":"%b","seq":' % channel.encode()
        parts.append(b'{"id":%d%b%d%b' % (id_, middle, seq, tail))
    return b",".join(parts)


def change_text(
    target: int,
    action: str,
    through: int | None = None,
    annotation: str | None = None,
    mode: str | None = None,
    *,
    remove: bool = False,
) -> bytes:
    """What a message that changes another one says about it, as readers get it and as it is stored."""
    said = b"" if through is None else b',"through":%d' % through
    if annotation is not None:
        said += b',"annotation":%b,"mode":"%b"' % (_encode(annotation), (mode or "").encode())
        said += b',"remove":true' if remove else b""
    return b'{"target":%d,"action":"%b"%b}' % (target, action.encode(), said)


@lru_cache(maxsize=4096)
def _quoted(text: str) -> bytes:
    # Few types and senders occur again and again. Keys may all be different and are not cached.
    return _encode(text)


def encode_ephemeral(message: NewMessage, created_at_us: int) -> bytes:
    """The JSON of a message that is never stored: as `encode_message`, without `id` and `seq`."""
    stored = Message(
        0,
        message.channel,
        0,
        message.type,
        message.key,
        message.data,
        message.binary,
        message.headers,
        message.sender,
        created_at_us,
        None,
    )
    return b"{" + encode_message(stored)[len(b'{"id":0,') :].replace(b'"seq":0,', b"", 1)


class _Encoded(msgspec.Struct):
    id: int
    channel: str
    seq: int
    type: str
    created_at: datetime
    key: str | None = None
    data: msgspec.Raw = msgspec.Raw()
    data_base64: bytes | None = None
    headers: msgspec.Raw = msgspec.Raw()
    sender: str | None = None
    expires_at: datetime | None = None
    target: int | None = None
    action: str = ""
    through: int | None = None
    annotation: str | None = None
    mode: str | None = None
    remove: bool = False


_decode: Final = msgspec.json.Decoder(_Encoded).decode


def decode_message(body: bytes) -> Message:
    """The message that `encode_message` made this of."""
    m = _decode(body)
    change = None
    if m.target is not None:
        change = change_text(m.target, m.action, m.through, m.annotation, m.mode, remove=m.remove)
    return Message(
        id=m.id,
        channel=m.channel,
        seq=m.seq,
        type=m.type,
        key=m.key,
        data=bytes(m.data) if m.data_base64 is None else None,
        binary=m.data_base64,
        headers=bytes(m.headers),
        sender=m.sender,
        created_at_us=microseconds(m.created_at),
        expires_at_us=None if m.expires_at is None else microseconds(m.expires_at),
        change=change,
    )
