"""Receipts on the wire. A receipt names one lease of one message and is signed, so it cannot be forged.

A receipt is 60 characters of base64url over 45 bytes: a version, the four numbers, and a MAC of 12 bytes.
Each receipt has only one spelling, because no character is padding or ignored.
"""

from __future__ import annotations

from binascii import Error, a2b_base64, b2a_base64
from collections.abc import Iterable
from hashlib import blake2b
from hmac import compare_digest
from struct import Struct
from typing import Final

from subscriptions.domain.delivery import Receipt

RECEIPT_CHARACTERS: Final = 60

_VERSION: Final = 1
_MAC_BYTES: Final = 12
_PERSON: Final = b"gapless receipt"
_NUMBERS: Final = Struct(">BQQQQ")
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
# The two characters of the other base64 alphabet are not allowed here: they become ones that base64 refuses.
_FROM_URL: Final = bytes.maketrans(b"-_+/", b"+/!!")


class ReceiptCodec:
    """Writes and reads the receipts of one installation, whose processes share `secret`. Without a secret it
    does neither; the gate opens after `learn`."""

    __slots__ = ("_keyed",)

    def __init__(self, secret: bytes | None = None) -> None:
        if secret is not None:
            self.learn(secret)

    def learn(self, secret: bytes) -> None:
        """Take the secret of the installation."""
        # A key has at most 64 bytes, and the same secret also signs other things.
        key = blake2b(secret, digest_size=32, person=_PERSON).digest()
        self._keyed = blake2b(key=key, digest_size=_MAC_BYTES, person=_PERSON)

    def encode(self, receipt: Receipt) -> str:
        """The text that a client gives back."""
        packed = _NUMBERS.pack(_VERSION, *receipt)
        return b2a_base64(packed + self._mac(packed), newline=False).translate(_TO_URL).decode("ascii")

    def decode(self, text: str) -> Receipt | None:
        """The receipt in the text, or None if this installation did not write it."""
        if len(text) != RECEIPT_CHARACTERS or not text.isascii():
            return None
        try:
            raw = a2b_base64(text.encode("ascii").translate(_FROM_URL), strict_mode=True)
        except Error:
            return None
        packed = raw[:-_MAC_BYTES]
        if not compare_digest(raw[-_MAC_BYTES:], self._mac(packed)):
            return None
        version, *numbers = _NUMBERS.unpack(packed)
        return Receipt(*numbers) if version == _VERSION else None

    def decode_all(self, texts: Iterable[str]) -> list[Receipt | None]:
        """As `decode`, for each of the texts, in order."""
        return [self.decode(text) for text in texts]

    def _mac(self, packed: bytes) -> bytes:
        mac = self._keyed.copy()
        mac.update(packed)
        return mac.digest()
