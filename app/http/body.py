"""Reads a request body and never holds more of it than is allowed."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from app.http.request import JSON, Request
from app.message.head import Form, PublishHead, is_gzip
from app.message.limits import MAX_BATCH_BYTES, MAX_BODY_BYTES
from subscriptions.domain.errors import Code, GaplessError, invalid

_GZIP: Final = 16 + zlib.MAX_WBITS
_MAX_GZIP_MEMBERS: Final = 16


async def read_body(receive: Receive, head: PublishHead, limit: int = MAX_BATCH_BYTES) -> bytes:
    """The whole body, decompressed, of at most `limit` bytes before and after.

    A request without a body and without a media type says nothing: `{}`. Raises `payload_too_large` as soon
    as that is certain, `unsupported_media_type` for a body without its type, `invalid_request` (400) for
    broken gzip, and `ClientDisconnect` when the client went away.
    """
    if head.content_length is not None and head.content_length > limit:
        raise _too_large(limit)
    body = await read_limited(receive, limit)
    if not head.media_type and head.form is Form.JSON:
        return _nothing(body)
    return decompress(body, limit) if head.gzip else body


async def read_json(
    request: Request[Any],
    limit: int = MAX_BODY_BYTES,
    media_types: Iterable[str] = (JSON,),
    *,
    required: bool = False,
) -> bytes:
    """The text of a small JSON body, of a route that is not hot: at most `limit` bytes before and after
    gunzip, not decoded yet. Where it is `required`, a request without a body does not stand for `{}`.

    Raises `unsupported_media_type`, `invalid_request`, and as `read_body` does.
    """
    content_type = request.headers.get("content-type", "")
    if content_type and content_type.split(";")[0].strip().lower() not in media_types:
        raise GaplessError(Code.UNSUPPORTED_MEDIA_TYPE, f"send {JSON}")
    gzip = is_gzip(request.headers.get("content-encoding", "").encode("latin-1"))
    raw = await read_limited(request.receive, limit)
    if not content_type:
        if required and not raw:
            raise invalid("body", "is required; {} stands for everything")
        return _nothing(raw)
    return decompress(raw, limit) if gzip else raw


def _nothing(raw: bytes) -> bytes:
    """The JSON of a request without a body, which needs no media type."""
    if raw:
        raise GaplessError(Code.UNSUPPORTED_MEDIA_TYPE, f"a body needs a Content-Type: send {JSON}")
    return b"{}"


async def read_limited(receive: Receive, limit: int) -> bytes:
    """The whole body as it was sent; raises as `read_body` does."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        first: bytes = message.get("body", b"")
        if len(first) > limit:
            raise _too_large(limit)
        return first
    chunks = bytearray()
    while True:
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunks += message.get("body", b"")
        if len(chunks) > limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            return bytes(chunks)
        message = await receive()


def decompress(raw: bytes, limit: int) -> bytes:
    """Gunzip at most `limit` bytes. Raises `payload_too_large`, or `invalid_request` (400) when broken."""
    whole = b""
    for _ in range(_MAX_GZIP_MEMBERS):
        reader = zlib.decompressobj(_GZIP)
        try:
            whole += reader.decompress(raw, limit + 1 - len(whole))
        except zlib.error:
            break
        if len(whole) > limit:
            raise _too_large(limit)
        if not reader.eof:
            break
        raw = reader.unused_data
        if not raw:
            return whole
    raise GaplessError(Code.INVALID_REQUEST, "the body is not valid gzip", status=400)


def _too_large(limit: int) -> GaplessError:
    return GaplessError(Code.PAYLOAD_TOO_LARGE, f"the body is longer than {limit} bytes")
