"""What signs receipts, and hints between processes."""

from __future__ import annotations

from typing import Final, NamedTuple

PURPOSES: Final = ("receipts", "hints")


class SigningSecrets(NamedTuple):
    """The secrets of each purpose that are accepted now; the first one of each signs."""

    receipts: tuple[bytes, ...]
    hints: tuple[bytes, ...]
