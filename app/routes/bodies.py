"""Bodies of the REST routes that are not hot: small, read whole, and JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fastapi import Request

from subscriptions.domain.errors import Code, GaplessError

JSON: Final = "application/json"
MAX_BODY_BYTES: Final = 1024 * 1024
"""The longest definition of a subscription takes more than half of it, when JSON escapes every character."""


async def read_json(
    request: Request, limit: int = MAX_BODY_BYTES, media_types: Iterable[str] = (JSON,)
) -> bytes:
    """The text of the body, at most `limit` bytes of it, not decoded yet.

    Raises `unsupported_media_type` and `payload_too_large`.
    """
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media_type not in media_types:
        raise GaplessError(Code.UNSUPPORTED_MEDIA_TYPE, f"send {JSON}")
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > limit:
            raise GaplessError(Code.PAYLOAD_TOO_LARGE, f"the body is longer than {limit} bytes")
    return bytes(raw)
