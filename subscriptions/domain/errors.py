"""The catalogue of errors: every error code of the service.

Each face maps `code` to its own status (HTTP, WebSocket, exit code). Codes are defined only here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Code(StrEnum):
    """Machine-readable error codes; the names are part of the protocol."""

    MALFORMED_JSON = "malformed_json"
    INVALID_REQUEST = "invalid_request"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    ORIGIN_NOT_ALLOWED = "origin_not_allowed"
    CHANNEL_NOT_FOUND = "channel_not_found"
    MESSAGE_NOT_FOUND = "message_not_found"
    SUBSCRIPTION_NOT_FOUND = "subscription_not_found"
    DEAD_LETTER_NOT_FOUND = "dead_letter_not_found"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    NOT_ACCEPTABLE = "not_acceptable"
    CONFLICT = "conflict"
    HEAD_MISMATCH = "head_mismatch"
    VERSION_MISMATCH = "version_mismatch"
    TRANSACTION_CONFLICT = "transaction_conflict"
    PRECONDITION_FAILED = "precondition_failed"
    CURSOR_EXPIRED = "cursor_expired"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    URI_TOO_LONG = "uri_too_long"
    HOST_NOT_ALLOWED = "host_not_allowed"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    IDEMPOTENCY_MISMATCH = "idempotency_mismatch"
    RATE_LIMITED = "rate_limited"
    HEADERS_TOO_LARGE = "headers_too_large"
    REQUEST_TIMEOUT = "request_timeout"
    UNAVAILABLE = "unavailable"
    STORAGE_FULL = "storage_full"
    INTERNAL = "internal"


RETRYABLE = frozenset({Code.RATE_LIMITED, Code.UNAVAILABLE, Code.STORAGE_FULL, Code.REQUEST_TIMEOUT})


@dataclass(frozen=True, slots=True)
class FieldError:
    """One error in one field; `field` is a path such as `messages[3].type`."""

    field: str
    message: str


class GaplessError(Exception):
    """An error that the caller can act on. `retry_after` is in seconds."""

    def __init__(
        self,
        code: Code,
        detail: str,
        *,
        errors: tuple[FieldError, ...] = (),
        retry_after: int | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.errors = errors
        self.retry_after = retry_after
        self.status = status

    @property
    def retryable(self) -> bool:
        return self.code in RETRYABLE

    def __repr__(self) -> str:
        return f"GaplessError({self.code.value}: {self.detail})"


class UnreachableError(GaplessError):
    """`unavailable`: the database cannot be reached or does not answer. Queued requests would fail too."""

    def __init__(self, detail: str) -> None:
        super().__init__(Code.UNAVAILABLE, detail, retry_after=1)


MAX_FIELD_CHARACTERS = 100


def invalid(field: str, message: str) -> GaplessError:
    """`invalid_request` about one field, of whose name it has the first `MAX_FIELD_CHARACTERS`: a client may
    make up a longer one."""
    field = field[:MAX_FIELD_CHARACTERS]
    return GaplessError(Code.INVALID_REQUEST, f"{field}: {message}", errors=(FieldError(field, message),))


def unauthenticated(why: str) -> GaplessError:
    """No credential came, or one that is not good. `why`: what is wrong, and what to do."""
    return GaplessError(Code.UNAUTHENTICATED, why)


def credential_ended() -> GaplessError:
    """The credential was good when it was sent, and has expired or was revoked since."""
    return unauthenticated("the credential has ended")


def internal() -> GaplessError:
    """`internal`, without details: an unexpected error, which the caller logs."""
    return GaplessError(Code.INTERNAL, "the server failed; what happened is in its log")


def unavailable(
    detail: str = "the database cannot be reached; what was asked for was done as a whole, or not at all",
) -> GaplessError:
    """`unavailable`; the caller may retry after a second.

    Without a `detail` it says only what is known after a connection was lost or did not answer.
    """
    return GaplessError(Code.UNAVAILABLE, detail, retry_after=1)
