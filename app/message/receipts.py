"""Receipts on the wire. A receipt names one lease of one message and is signed, so it cannot be forged.

A receipt is 60 characters of base64url over 45 bytes: a version, the four numbers, and a MAC of 12 bytes.
Each receipt has only one spelling, because no character is padding or ignored.
"""

from __future__ import annotations

import time
from binascii import Error, a2b_base64, b2a_base64
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from hmac import compare_digest
from math import inf
from struct import Struct
from typing import Final

from subscriptions.domain.delivery import Receipt
from subscriptions.domain.errors import unavailable

RECEIPT_CHARACTERS: Final = 60

_VERSION: Final = 1
_MAC_BYTES: Final = 12
_PERSON: Final = b"gapless receipt"
_NUMBERS: Final = Struct(">BQQQQ")
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
# The two characters of the other base64 alphabet are not allowed here: they become ones that base64 refuses.
_FROM_URL: Final = bytes.maketrans(b"-_+/", b"+/!!")


class ReceiptCodec:
    """Writes and reads the receipts of one installation, whose processes share `secrets`: the first one
    signs, each is accepted. Without one it does neither; the gate opens after `learn`."""

    __slots__ = ("_clock", "_keyed", "_known_until", "_secrets")

    def __init__(self, *secrets: bytes, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known_until = inf
        self._secrets: tuple[bytes, ...] = ()
        self._keyed: list[blake2b] = []
        if secrets:
            self.learn(secrets)

    def learn(self, secrets: Sequence[bytes], good_until: float = inf) -> None:
        """Take the secrets of the installation. From `good_until` on, by the clock, others may sign."""
        self._known_until = good_until
        if self._secrets != (new := tuple(secrets)):
            self._secrets = new
            # A key has at most 64 bytes, and the secret of an old installation also signs other things.
            keys = [blake2b(secret, digest_size=32, person=_PERSON).digest() for secret in new]
            self._keyed = [blake2b(key=key, digest_size=_MAC_BYTES, person=_PERSON) for key in keys]

    def encode(self, receipt: Receipt) -> str:
        """The text that a client gives back."""
        packed = _NUMBERS.pack(_VERSION, *receipt)
        mac = _mac(self._keyed[0], packed)
        return b2a_base64(packed + mac, newline=False).translate(_TO_URL).decode("ascii")

    def decode(self, text: str) -> Receipt | None:
        """The receipt in the text, or None if this installation did not write it. Raises `unavailable`: it
        may have been signed with a secret that is not known here yet."""
        if len(text) != RECEIPT_CHARACTERS or not text.isascii():
            return None
        try:
            raw = a2b_base64(text.encode("ascii").translate(_FROM_URL), strict_mode=True)
        except Error:
            return None
        packed, mac = raw[:-_MAC_BYTES], raw[-_MAC_BYTES:]
        for keyed in self._keyed:
            if compare_digest(mac, _mac(keyed, packed)):
                version, *numbers = _NUMBERS.unpack(packed)
                return Receipt(*numbers) if version == _VERSION else None
        if self._clock() > self._known_until:
            raise unavailable("the secrets of receipts cannot be read now; nothing was done")
        return None

    def decode_all(self, texts: Iterable[str]) -> list[Receipt | None]:
        """As `decode`, for each of the texts, in order."""
        return [self.decode(text) for text in texts]


def _mac(keyed: blake2b, packed: bytes) -> bytes:
    mac = keyed.copy()
    mac.update(packed)
    return mac.digest()
