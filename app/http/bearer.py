"""The form of credentials as they are sent. What checks tokens is imported only where they can be checked."""

from __future__ import annotations

from typing import Final

EXPIRED: Final = "the token has expired"


def is_token(text: str) -> bool:
    """Whether a credential has the form of a token."""
    return text.count(".") == 2
