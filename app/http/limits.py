"""Limits of requests, and how a request is refused before a route sees it. The server's own protocol keeps
these rules, and `app.http.asgi` keeps them under other servers."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Final

from app.http import problem
from app.http.problem import Headers
from subscriptions.domain.errors import Code, GaplessError

MAX_TARGET_BYTES: Final = 16 * 1024
MAX_FIELDS: Final = 100
MAX_FIELDS_BYTES: Final = 32 * 1024
MAX_REQUEST_BYTES: Final = 64 * 1024 * 1024
MIN_BODY_BYTES_PER_S: Final = 500
ALLOW: Final = b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"

refusals: Final[Counter[Code]] = Counter()
"""How many requests this process refused before they reached a route, by code."""


def body_due(now: float, began: float, received_bytes: int, patience_s: float) -> float:
    """The loop time by which the next byte of a body must be there. It may never be still for `patience_s`,
    nor slower than `MIN_BODY_BYTES_PER_S` since its first byte."""
    return min(now, began + received_bytes / MIN_BODY_BYTES_PER_S) + patience_s


def fields_bytes(headers: Headers) -> int:
    """The bytes of names and values."""
    return sum(len(name) + len(value) for name, value in headers)


def refusal(error: GaplessError, defaults: Headers) -> tuple[int, Headers, bytes]:
    """The status, the headers and the body of the answer that ends the connection. `defaults`: the headers of
    every answer to this request."""
    status, headers, body = problem.render(error)
    headers += defaults
    headers += [(b"x-request-id", uuid.uuid4().hex.encode()), (b"connection", b"close")]
    if status == 405:
        headers.append((b"allow", ALLOW))
    return status, headers, body


def bad_request(detail: str) -> GaplessError:
    """The error for a request that is not HTTP as this server understands it."""
    return GaplessError(Code.INVALID_REQUEST, detail, status=400)


def target_too_long() -> GaplessError:
    return GaplessError(Code.URI_TOO_LONG, f"the target is longer than {MAX_TARGET_BYTES} bytes")


def too_many_fields() -> GaplessError:
    return GaplessError(
        Code.HEADERS_TOO_LARGE, f"more than {MAX_FIELDS} header fields or {MAX_FIELDS_BYTES} bytes of them"
    )


def no_proxy() -> GaplessError:
    return GaplessError(Code.METHOD_NOT_ALLOWED, "this is no proxy")


def too_long() -> GaplessError:
    return GaplessError(Code.PAYLOAD_TOO_LARGE, f"longer than {MAX_REQUEST_BYTES} bytes")


def too_late() -> GaplessError:
    return GaplessError(Code.REQUEST_TIMEOUT, "the request did not arrive in time")
