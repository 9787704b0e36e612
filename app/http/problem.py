"""Errors as `application/problem+json` (RFC 9457): the one table from error codes to HTTP statuses."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from subscriptions.domain.errors import Code, GaplessError, internal

logger = logging.getLogger("gapless.http")

CONTENT_TYPE: Final = b"application/problem+json"
MAX_DETAIL_CHARACTERS: Final = 1000

STATUS: Final[dict[Code, int]] = {
    Code.MALFORMED_JSON: 400,
    Code.INVALID_REQUEST: 422,
    Code.UNAUTHENTICATED: 401,
    Code.FORBIDDEN: 403,
    Code.ORIGIN_NOT_ALLOWED: 403,
    Code.CHANNEL_NOT_FOUND: 404,
    Code.MESSAGE_NOT_FOUND: 404,
    Code.SUBSCRIPTION_NOT_FOUND: 404,
    Code.DEAD_LETTER_NOT_FOUND: 404,
    Code.NOT_FOUND: 404,
    Code.METHOD_NOT_ALLOWED: 405,
    Code.NOT_ACCEPTABLE: 406,
    Code.REQUEST_TIMEOUT: 408,
    Code.CONFLICT: 409,
    Code.HEAD_MISMATCH: 409,
    Code.VERSION_MISMATCH: 409,
    Code.TRANSACTION_CONFLICT: 409,
    Code.CURSOR_EXPIRED: 410,
    Code.PRECONDITION_FAILED: 412,
    Code.PAYLOAD_TOO_LARGE: 413,
    Code.URI_TOO_LONG: 414,
    Code.UNSUPPORTED_MEDIA_TYPE: 415,
    Code.HOST_NOT_ALLOWED: 421,
    Code.IDEMPOTENCY_MISMATCH: 422,
    Code.RATE_LIMITED: 429,
    Code.HEADERS_TOO_LARGE: 431,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.STORAGE_FULL: 507,
}

_ASK_AGAIN_LATER: Final = frozenset({Code.RATE_LIMITED, Code.UNAVAILABLE, Code.STORAGE_FULL})

Headers = list[tuple[bytes, bytes]]


def status_of(error: GaplessError) -> int:
    """The HTTP status of an error: its own when it carries one, else that of its code."""
    return error.status if error.status is not None else STATUS[error.code]


def render(error: GaplessError) -> tuple[int, Headers, bytes]:
    """Status, headers (with Content-Length) and body of the answer to a refused request."""
    status = status_of(error)
    body: dict[str, Any] = {
        "type": f"urn:gapless:problem:{error.code.value}",
        "title": error.code.value.replace("_", " ").capitalize(),
        "status": status,
        "detail": printable(error.detail),
        "code": error.code.value,
        "retryable": error.retryable,
    }
    if error.errors:
        body["errors"] = [
            {"field": printable(e.field), "message": printable(e.message)} for e in error.errors
        ]
    content = msgspec.json.encode(body)
    headers: Headers = [
        (b"content-type", CONTENT_TYPE),
        (b"content-length", b"%d" % len(content)),
        (b"cache-control", b"no-store"),
    ]
    if error.code is Code.UNAUTHENTICATED:
        headers.append((b"www-authenticate", b"Bearer"))
    if error.retry_after is not None or error.code in _ASK_AGAIN_LATER:
        headers.append((b"retry-after", b"%d" % (1 if error.retry_after is None else error.retry_after)))
    return status, headers, content


def printable(text: str) -> str:
    """`text` for a terminal or a log line: unprintable characters are escaped, and a long text is cut."""
    if len(text) > MAX_DETAIL_CHARACTERS:
        text = text[:MAX_DETAIL_CHARACTERS] + "…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def response(error: GaplessError, extra: Mapping[str, str] | None = None) -> Response:
    """The same answer as a Starlette response; `extra` headers are added."""
    status, headers, content = render(error)
    answer = Response(content, status_code=status)
    answer.raw_headers = headers + [
        (k.lower().encode(), v.encode("latin-1")) for k, v in (extra or {}).items()
    ]
    return answer


def from_http(error: HTTPException) -> GaplessError:
    """The error with our code for an exception that the framework raised for a page."""
    known = {404: Code.NOT_FOUND, 405: Code.METHOD_NOT_ALLOWED}
    code = known.get(error.status_code, Code.INTERNAL if error.status_code >= 500 else Code.INVALID_REQUEST)
    return GaplessError(code, str(error.detail), status=error.status_code)


def install(app: FastAPI) -> None:
    """Make every refusal and every crash of `app` a problem document; crashes are logged, never shown."""

    def on_http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return response(from_http(error), error.headers)

    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_crash)


def on_crash(request: Request, error: Exception) -> Response:
    """Log an unexpected error with its request id, and answer `internal` without details."""
    request_id = request.scope.get("state", {}).get("request_id")
    if isinstance(request_id, bytes):
        request_id = request_id.decode("latin-1")
    logger.error(
        "unhandled error", exc_info=error, extra={"request_id": request_id, "path": request.url.path}
    )
    return response(internal())
