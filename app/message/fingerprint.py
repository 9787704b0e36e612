"""The fingerprint that tells whether two requests with one Idempotency-Key are the same."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from app.message.head import PublishHead


def fingerprint(path: str, head: PublishHead, body: bytes) -> bytes:
    """A hash of 16 bytes over the request's target, its body's form, the body, and an event's headers."""
    digest = blake2b(digest_size=16)
    for part in (path.encode(), head.form.value.encode(), body, msgspec.json.encode(sorted(head.event))):
        digest.update(b"%d:" % len(part))
        digest.update(part)
    for _, value in sorted(head.event.items()):
        digest.update(b"%d:" % len(value) + value)
    return digest.digest()
