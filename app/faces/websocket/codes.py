"""The codes of the client protocol: of errors, of ended subscriptions, and of ended connections.

Source: the Centrifugo client protocol, whose clients decide by these numbers what to do next. A subscription
that ended with 2500 or above is subscribed again by its client. A connection that ended with 3500 to 3999 is
not connected again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from app.http.websocket import BAD_REQUEST as CLOSE_BAD_REQUEST
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.goodbye import Goodbye


class ErrorCode(NamedTuple):
    """An error in the answer to a command. `temporary`: the same command may succeed later."""

    code: int
    message: str
    temporary: bool = False


INTERNAL: Final = ErrorCode(100, "internal server error", temporary=True)
UNAUTHORIZED: Final = ErrorCode(101, "unauthorized")
UNKNOWN_CHANNEL: Final = ErrorCode(102, "unknown channel")
UNKNOWN_SUBSCRIPTION: Final = ErrorCode(102, "unknown subscription")
PERMISSION_DENIED: Final = ErrorCode(103, "permission denied")
METHOD_NOT_FOUND: Final = ErrorCode(104, "method not found")
ALREADY_SUBSCRIBED: Final = ErrorCode(105, "already subscribed")
LIMIT_EXCEEDED: Final = ErrorCode(106, "limit exceeded")
BAD_REQUEST: Final = ErrorCode(107, "bad request")
NOT_AVAILABLE: Final = ErrorCode(108, "not available")
TOKEN_EXPIRED: Final = ErrorCode(109, "token expired")
"""Clients ask their application for another token."""
TOO_MANY_REQUESTS: Final = ErrorCode(111, "too many requests", temporary=True)
NO_OWN_TOKEN: Final = UNKNOWN_SUBSCRIPTION._replace(message="no subscription here has a token of its own")
OVERTAKEN: Final = NOT_AVAILABLE._replace(message="ended before it began")
UNRECOVERABLE_POSITION: Final = ErrorCode(112, "unrecoverable position")

_OF_ERRORS: Final = {
    Code.UNAUTHENTICATED: UNAUTHORIZED,
    Code.FORBIDDEN: PERMISSION_DENIED,
    Code.CHANNEL_NOT_FOUND: UNKNOWN_CHANNEL,
    Code.SUBSCRIPTION_NOT_FOUND: UNKNOWN_SUBSCRIPTION,
    Code.CURSOR_EXPIRED: UNRECOVERABLE_POSITION,
    Code.PAYLOAD_TOO_LARGE: LIMIT_EXCEEDED,
    Code.RATE_LIMITED: TOO_MANY_REQUESTS,
    Code.UNAVAILABLE: INTERNAL,
    Code.STORAGE_FULL: INTERNAL,
    Code.INTERNAL: INTERNAL,
}


def error_code(error: GaplessError) -> ErrorCode:
    """The number for an error of the catalogue, with the error's own words."""
    found = _OF_ERRORS.get(error.code, BAD_REQUEST)
    return found._replace(message=f"{found.message}: {error.detail}")


class Ending(NamedTuple):
    """Why a subscription or a connection ends."""

    code: int
    reason: str


INSUFFICIENT_STATE: Final = Ending(2500, "insufficient state")
"""Messages are gone, or the channel is another one: the client subscribes again from where it is."""

SUBSCRIPTION_EXPIRED: Final = Ending(2501, "subscription expired")
"""Its own token has ended: the client asks for another one and subscribes again from where it is."""

SHUTDOWN: Final = Ending(3001, "shutdown")
CREDENTIAL_EXPIRED: Final = Ending(3005, "connection expired")
SERVER_ERROR: Final = Ending(3004, "internal server error")
SLOW: Final = Ending(3008, "slow")
NO_PONG: Final = Ending(3012, "no pong")
BAD_COMMAND: Final = Ending(CLOSE_BAD_REQUEST, "bad request")
"""A command without an id, or the third malformed one."""
INVALID_TOKEN: Final = Ending(3500, "invalid token")
STALE: Final = Ending(3502, "stale")
"""No `connect` came in time."""
TOO_MANY_COMMANDS: Final = Ending(1008, "too many commands in a message")

GOODBYES: Final = {
    Goodbye.SHUTDOWN: SHUTDOWN,
    Goodbye.SLOW_CONSUMER: SLOW,
    Goodbye.CREDENTIAL_EXPIRED: CREDENTIAL_EXPIRED,
}
"""The endings of connections by reason. For other reasons only the subscription ends."""
