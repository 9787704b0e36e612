"""Reads the small JSON bodies of routes that are not hot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from app.request import JSON, Request
from app.wire.body import decompress, read_limited
from app.wire.checks import MAX_BODY_BYTES
from app.wire.head import is_gzip
from subscriptions.domain.errors import Code, GaplessError


async def read_json(
    request: Request[Any], limit: int = MAX_BODY_BYTES, media_types: Iterable[str] = (JSON,)
) -> bytes:
    """The text of the body, at most `limit` bytes before and after gunzip, not decoded yet.

    Raises `unsupported_media_type`, and as `read_body` does.
    """
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media_type not in media_types:
        raise GaplessError(Code.UNSUPPORTED_MEDIA_TYPE, f"send {JSON}")
    gzip = is_gzip(request.headers.get("content-encoding", "").encode("latin-1"))
    raw = await read_limited(request.receive, limit)
    return decompress(raw, limit) if gzip else raw
