"""Hints between processes: what was committed, with hot copies while they are small, signed.

A hint is never trusted to be there. It is trusted to be true, because it is signed with a secret that only
those who can read the log hold: whoever may write to Redis can make a reader look, not make it see.
"""

from __future__ import annotations

import hmac
from hashlib import blake2b

import msgspec

from subscriptions.engine.entry import Entry

MAX_COPIES_BYTES = 256 * 1024
"""Hot copies in one hint, together. Above that the hint only says what is there."""
SIGNATURE_BYTES = 16


class Copy(msgspec.Struct, array_like=True, frozen=True):
    """One committed message. `body` is None when it was too large to travel along."""

    id: int
    seq: int
    type: str
    key: str | None
    body: bytes | None


class ChannelHint(msgspec.Struct, array_like=True, frozen=True):
    """Messages one commit added to one channel, right after (`after_id`, `after_seq`)."""

    namespace: str
    channel: str
    channel_id: int
    after_id: int
    after_seq: int
    copies: list[Copy]


class EphemeralHint(msgspec.Struct, array_like=True, frozen=True):
    """A message that is not stored: its JSON text goes to whoever listens now."""

    namespace: str
    channel: str
    type: str
    key: str | None
    body: bytes


class Hints(msgspec.Struct, array_like=True, frozen=True):
    """What one commit, one ephemeral publish or one settlement tells the other processes. `origin` names
    the sender, which has already told its own readers. `woken`: durable subscriptions in which something
    was settled; `settled`: leases among that, as (subscription, message id, lease), streamed by others."""

    origin: str
    channels: list[ChannelHint]
    ephemeral: list[EphemeralHint]
    woken: list[int] = []
    settled: list[tuple[int, int, int]] = []


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Hints)


class HintCodec:
    """Signs and encodes, verifies and decodes."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        assert len(secret) >= 16, "a secret of at least 128 bits"
        self._secret = secret[: blake2b.MAX_KEY_SIZE]

    def encode(self, hints: Hints) -> bytes:
        payload = _encoder.encode(hints)
        return self._sign(payload) + payload

    def decode(self, data: bytes) -> Hints | None:
        """The hints, or None for anything that was not signed here."""
        signature, payload = data[:SIGNATURE_BYTES], data[SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._sign(payload)):
            return None
        try:
            return _decoder.decode(payload)
        except msgspec.DecodeError:  # Signed by a version of the service that speaks another format.
            return None

    def _sign(self, payload: bytes) -> bytes:
        return blake2b(payload, digest_size=SIGNATURE_BYTES, key=self._secret).digest()


def entries_of(hint: ChannelHint) -> list[Entry]:
    """Entries of the copies that travelled along."""
    return [
        Entry(c.id, hint.namespace, hint.channel, c.seq, c.type, c.key, c.body)
        for c in hint.copies
        if c.body is not None
    ]
