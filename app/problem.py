"""Errors as `application/problem+json` (RFC 9457): the one table from error codes to HTTP statuses."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match

from subscriptions.domain.errors import Code, FieldError, GaplessError

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

# The table read the other way, for refusals that come from the framework with a status alone.
_CODE_BY_STATUS: Final[Mapping[int, Code]] = {
    **{STATUS[code]: code for code in reversed(STATUS)},
    400: Code.INVALID_REQUEST,
    404: Code.NOT_FOUND,
}
_ASK_AGAIN_LATER: Final = frozenset({Code.RATE_LIMITED, Code.UNAVAILABLE, Code.STORAGE_FULL})
_METHODS: Final = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
_UNREADABLE_BODY: Final = "There was an error parsing the body"

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
    """`text` fit for a terminal or a log line: what does not print is spelled out, what is long is cut."""
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
    """What a framework's own refusal (no such route, no such method) means in our catalogue."""
    detail = str(error.detail)
    if error.status_code == 400 and detail == _UNREADABLE_BODY:
        return GaplessError(Code.MALFORMED_JSON, "the body is not JSON")
    fallback = Code.INTERNAL if error.status_code >= 500 else Code.INVALID_REQUEST
    code = _CODE_BY_STATUS.get(error.status_code, fallback)
    return GaplessError(code, detail, status=error.status_code)


def from_validation(error: RequestValidationError) -> GaplessError:
    """Field errors with paths such as `messages[3].type`, or `malformed_json` when nothing could be read."""
    found = error.errors()
    if any(item["type"] == "json_invalid" for item in found):
        return GaplessError(Code.MALFORMED_JSON, "the body is not JSON")
    errors = tuple(FieldError(_path(item["loc"]), str(item["msg"])) for item in found)
    detail = "; ".join(f"{e.field}: {e.message}" for e in errors)
    return GaplessError(Code.INVALID_REQUEST, detail, errors=errors)


def _path(location: Sequence[int | str]) -> str:
    """A place as pydantic names it, `("body", "messages", 3, "type")`, as a path without its first part."""
    path = ""
    for part in location[1:]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path or str(location[0] if location else "body")


def install(app: FastAPI) -> None:
    """Make every refusal and every crash of `app` a problem document; crashes are logged, never shown."""

    def on_gapless(_: Request, error: Exception) -> Response:
        assert isinstance(error, GaplessError)
        return response(error)

    def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        extra = dict(error.headers or {})
        if error.status_code == 405:
            # The framework names the methods of one route only, and each method of a path is a route.
            extra["Allow"] = ", ".join(_allowed(request))
        return response(from_http(error), extra)

    def on_validation(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return response(from_validation(error))

    app.add_exception_handler(GaplessError, on_gapless)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(Exception, on_crash)


def _allowed(request: Request) -> list[str]:
    def is_known(method: str) -> bool:
        scope = {**request.scope, "method": method}
        return any(route.matches(scope)[0] is Match.FULL for route in request.app.router.routes)

    return [method for method in _METHODS if is_known(method)]


def on_crash(request: Request, error: Exception) -> Response:
    """Log what nobody foresaw under its request id, and answer `internal` without a word of it.

    A client that left in the middle of its request is nothing unforeseen, and reads no answer.
    """
    if isinstance(error, ClientDisconnect):
        return Response(status_code=400)
    request_id = request.scope.get("state", {}).get("request_id")
    if isinstance(request_id, bytes):
        request_id = request_id.decode("latin-1")
    logger.error(
        "unhandled error", exc_info=error, extra={"request_id": request_id, "path": request.url.path}
    )
    return response(GaplessError(Code.INTERNAL, "the server failed; what happened is in its log"))
