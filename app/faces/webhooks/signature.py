"""The signature of [Standard Webhooks](https://www.standardwebhooks.com) 1.0, symmetric (`v1`)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

from subscriptions.domain.errors import invalid

PREFIX: Final = "whsec_"
MIN_KEY_BYTES: Final = 24
MAX_KEY_BYTES: Final = 64
MAX_SECRET_CHARACTERS: Final = len(PREFIX) + (MAX_KEY_BYTES + 2) // 3 * 4
_RULE: Final = f"must be {PREFIX} and the base64 of {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes"


def check_secret(secret: str) -> bytes:
    """The key in `secret`. Raises `invalid_request` about `push.secret`, without repeating it."""
    try:
        key = binascii.a2b_base64(secret.removeprefix(PREFIX), strict_mode=True)
    except ValueError:  # This is binascii.Error, or the error for text beyond ASCII.
        raise invalid("push.secret", _RULE) from None
    if not secret.startswith(PREFIX) or not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise invalid("push.secret", _RULE)
    return key


def signed(secret: str, webhook_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """The three headers of the standard. `timestamp_s` is the time of this attempt, since the Unix epoch."""
    content = b"%b.%d.%b" % (webhook_id.encode(), timestamp_s, body)
    digest = hmac.digest(check_secret(secret), content, hashlib.sha256)
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }
