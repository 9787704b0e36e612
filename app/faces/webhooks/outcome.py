"""The outcome of a delivery, decided from the receiver's answer, or from the failure to get one.

A reason never repeats the receiver's text, so that a webhook cannot be used to read data from its target.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.client import responses
from typing import Final, TypeAlias

import httpcore

from app.faces.webhooks.guard import UnreachableError

MAX_REASON_CHARACTERS: Final = 300
MAX_RETRY_AFTER_S: Final = 86_400.0
MAX_RETRY_AFTER_BYTES: Final = 64
_SAY_WHEN: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


@dataclass(frozen=True, slots=True)
class Delivered:
    """The receiver answered 2xx: the message is settled."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The delivery failed. `reason`: up to 300 characters, no secret. `retry_after_s`: the shortest wait."""

    reason: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Crowded(Failed):
    """No connection became free in time, so nothing was sent."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The receiver answered 410: it wants no more messages of this subscription."""

    reason: str = "answered 410 Gone"


Outcome: TypeAlias = Delivered | Failed | Gone


def answered(status: int, headers: Iterable[tuple[bytes, bytes]], now: datetime) -> Outcome:
    """The outcome of an answer that came `now`. A redirect is a failure: it is not followed."""
    if 200 <= status < 300:
        return Delivered()
    if status == HTTPStatus.GONE:
        return Gone()
    reason = f"answered {status} {responses.get(status, '')}".rstrip()
    if 300 <= status < 400:
        reason += "; redirects are not followed"
    given = [value for name, value in headers if name.lower() == b"retry-after"]
    return Failed(reason, _seconds(given[0], now) if given and status in _SAY_WHEN else None)


def _seconds(retry_after: bytes, now: datetime) -> float | None:
    """RFC 9110 section 10.2.3: seconds or a date. None: neither of them, or a time that is past."""
    text = retry_after[:MAX_RETRY_AFTER_BYTES].decode("latin-1").strip()
    if text.isascii() and text.isdigit():
        wait_s = float(text)
    else:
        try:
            moment = parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            return None
        wait_s = (moment.replace(tzinfo=moment.tzinfo or UTC) - now).total_seconds()
    return min(wait_s, MAX_RETRY_AFTER_S) if wait_s > 0 else None


def broken(error: Exception) -> Failed:
    """The outcome when no answer came because of `error`."""
    # The pool raises without its cause, but the exception's context is still there.
    match error, error.__context__:
        case UnreachableError(), _:
            reason = str(error)
        case _, ssl.SSLCertVerificationError() as refused:
            reason = f"its certificate was refused: {refused.verify_message}"
        case (ssl.SSLError(), _) | (_, ssl.SSLError()):
            reason = "broke off the TLS handshake or connection"
        case ((httpcore.ConnectError() | httpcore.ConnectTimeout()), _):
            reason = "could not be connected to"
        case httpcore.RemoteProtocolError(), _:
            reason = "closed the connection without an answer, or answered something that is not HTTP"
        case _:
            reason = "broke the connection off before its answer"
    return Failed(reason[:MAX_REASON_CHARACTERS])
