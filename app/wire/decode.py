"""The message JSON of the protocol back into a message: for faces that show it in another form."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from subscriptions.domain.model import Message, microseconds


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


_decode: Final = msgspec.json.Decoder(_Encoded).decode


def decode_message(body: bytes) -> Message:
    """The message that `encode_message` made this of."""
    m = _decode(body)
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
    )
