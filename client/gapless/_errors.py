"""The errors of the client. `code`, `status` and `retryable` come from the service's list of errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import copy
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from gapless._lost import Gap


class GaplessError(Exception):
    """A call that did not succeed.

    `code` is the machine-readable name and `status` the HTTP status (0 when there was no answer). `retryable`
    says that the same call may succeed later. `errors` lists the fields that were wrong, each with the
    reason. `retry_after` is in seconds. `idempotency_key` is the key of a failed publish: publishing the same
    messages again under it stores them once, whether or not this attempt stored them.
    """

    def __init__(
        self,
        detail: str,
        *,
        code: str = "error",
        status: int = 0,
        retryable: bool = False,
        errors: tuple[Mapping[str, Any], ...] = (),
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code
        self.status = status
        self.retryable = retryable
        self.errors = errors
        self.request_id = request_id
        self.retry_after = retry_after
        self.idempotency_key: str | None = None

    def __str__(self) -> str:
        where = f" (request {self.request_id})" if self.request_id else ""
        return f"{self.code}: {self.detail}{where}"


class InvalidRequest(GaplessError):
    """The request is not valid: a bad name, body, query or cursor. `errors` says where."""


class Unauthenticated(GaplessError):
    """The request had no credential, or a bad or expired one."""


class Forbidden(GaplessError):
    """The credential does not grant this."""


class NotFound(GaplessError):
    """The channel, message, subscription, dead letter or other thing does not exist here."""


class Conflict(GaplessError):
    """The state of the service contradicts the request."""


class HeadMismatch(Conflict):
    """`expected_last_seq` is not the channel's last seq; nothing was stored."""


class VersionMismatch(Conflict):
    """The target was changed by another message than `expected_version` last; nothing was stored."""


class TransactionConflict(Conflict):
    """A receipt in the transaction is not live any more; `errors` says which. Nothing was changed."""


class PreconditionFailed(Conflict):
    """The thing to be changed has another `etag` than `if_match` by now; nothing was changed."""


class IdempotencyMismatch(GaplessError):
    """The idempotency key was used before with another body; nothing was stored."""


class CursorExpired(GaplessError):
    """Retention removed messages that the cursor still asked for."""


class PayloadTooLarge(GaplessError):
    """The message or batch is over the service's limit."""


class RateLimited(GaplessError):
    """Too many requests; `retry_after` says how many seconds to wait."""


class Unavailable(GaplessError):
    """The database is unreachable or the service is not ready. The detail says if something may be stored."""


class ServerError(GaplessError):
    """The service failed, or a proxy on the way to it. A publish may or may not be stored."""


class Unreachable(GaplessError):
    """No complete answer came: connection refused or lost, or timeout. A publish may or may not be stored."""


class ProtocolError(GaplessError):
    """The answer is not one of Gapless; most likely another server listens at this address."""


class CredentialExpired(Unauthenticated):
    """The credential expired while a subscription was open. Its cursor stays valid for the next one."""


class HistoryLost(GaplessError):
    """Messages are lost; `gap` says which. Either retention removed them before this reader came to them, or
    the log went back to an earlier moment, and this reader may have read them.

    The reader stays usable: further iteration gives the messages after the gap.
    """

    def __init__(self, detail: str, *, gap: Gap | None = None) -> None:
        super().__init__(detail, code="gap")
        self.gap = gap

    @classmethod
    def of(cls, gap: Gap) -> HistoryLost:
        """The error for this gap."""
        return cls(str(gap), gap=gap)


class LeaseLost(GaplessError):
    """A delivery's lease ended before the delivery was settled: its message is, or was, handed out again.

    The work on it will be done a second time, so a second time must do no harm. `receipt` names the lease.
    """

    def __init__(self, detail: str, *, receipt: str | None = None) -> None:
        super().__init__(detail, code="lease_lost")
        self.receipt = receipt


_BY_CODE: dict[str, type[GaplessError]] = {
    "invalid_request": InvalidRequest,
    "malformed_json": InvalidRequest,
    "unsupported_media_type": InvalidRequest,
    "not_acceptable": InvalidRequest,
    "uri_too_long": InvalidRequest,
    "headers_too_large": InvalidRequest,
    "host_not_allowed": InvalidRequest,
    "unauthenticated": Unauthenticated,
    "forbidden": Forbidden,
    "origin_not_allowed": Forbidden,
    "conflict": Conflict,
    "head_mismatch": HeadMismatch,
    "version_mismatch": VersionMismatch,
    "transaction_conflict": TransactionConflict,
    "precondition_failed": PreconditionFailed,
    "idempotency_mismatch": IdempotencyMismatch,
    "cursor_expired": CursorExpired,
    "payload_too_large": PayloadTooLarge,
    "rate_limited": RateLimited,
    "unavailable": Unavailable,
}

_BY_STATUS: dict[int, type[GaplessError]] = {
    400: InvalidRequest,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: CursorExpired,
    412: PreconditionFailed,
    413: PayloadTooLarge,
    415: InvalidRequest,
    422: InvalidRequest,
    429: RateLimited,
    503: Unavailable,
}

_PASSING_STATUSES = frozenset({408, 425, 429})
_LASTING_SERVER_STATUSES = frozenset({501, 505})


def apart(error: Exception) -> Exception:
    """The error for one of several callers. A `GaplessError` is copied, so each has its own traceback."""
    return copy(error) if isinstance(error, GaplessError) else error


def error_from_answer(status: int, headers: Mapping[str, str], body: bytes) -> GaplessError:
    """The error for an answer that is not a success. `headers` has lower-case names.

    A proxy's answer without `application/problem+json` gets the code `http_<status>`; its status decides.
    """
    problem = _problem(body)
    code = problem.get("code")
    named = isinstance(code, str)
    kind = _BY_CODE.get(code) if isinstance(code, str) else None
    if kind is None:
        kind = _BY_STATUS.get(status) or (ServerError if status >= 500 else GaplessError)
    errors = problem.get("errors")
    return kind(
        str(problem.get("detail") or problem.get("title") or f"the server answered with status {status}"),
        code=str(code) if named else f"http_{status}",
        status=status,
        retryable=is_passing(status) or problem.get("retryable") is True,
        errors=tuple(e for e in errors if isinstance(e, dict)) if isinstance(errors, list) else (),
        request_id=headers.get("x-request-id"),
        retry_after=_seconds(headers.get("retry-after")),
    )


def is_passing(status: int) -> bool:
    """Whether an answer with this status is worth a retry, independent of its body."""
    return status in _PASSING_STATUSES or (status >= 500 and status not in _LASTING_SERVER_STATUSES)


def _problem(body: bytes) -> dict[str, Any]:
    try:
        problem = json.loads(body)
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}


def _seconds(retry_after: str | None) -> float | None:
    """`Retry-After` in seconds: a number, or a date measured against this machine's clock."""
    if retry_after is None:
        return None
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())
