"""The commands of the WebSocket protocol and what comes back: nothing here sends or waits.

A message is some commands, or some replies and pushes, a line for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gapless._call import json_body
from gapless._errors import GaplessError, PayloadTooLarge, ProtocolError
from gapless._retry import Break, NoReply, Reply
from gapless._streams.stream import parse_json

MAX_COMMAND_BYTES = 2 * 1024 * 1024 - 64
"""The longest command that fits into a message to the server, with its id."""
DEFAULT_PING_SECONDS = 25.0
MAX_PING_SECONDS = 3600.0

_STATUSES: Mapping[int, tuple[int, str]] = {
    # The server failed in the middle: what was asked for may or may not be done.
    100: (500, "internal"),
    101: (401, "unauthenticated"),
    102: (404, "channel_not_found"),
    103: (403, "forbidden"),
    104: (501, "not_available"),
    105: (409, "conflict"),
    106: (413, "payload_too_large"),
    107: (400, "invalid_request"),
    108: (400, "not_available"),
    109: (401, "credential_expired"),
    110: (401, "credential_expired"),
    111: (429, "rate_limited"),
    # Cursors are ids, and an id stays a position when messages are removed: only one of the future is none.
    112: (400, "invalid_request"),
}
"""The status and code over HTTP of each error of a command."""

_GOODBYES: Mapping[int, str] = {3001: "shutdown", 3005: "credential_expired", 3008: "slow_consumer"}
"""The reasons of a goodbye, by the code of the close."""
_OWN_FAULTS = frozenset({1002, 1003, 1007, 1008, 1009, 1010})
"""Closes because one side does not keep the protocol."""
_LATE_CONNECT = 3502
"""Like the others from 3500 on it ends the connection for good, but a slow network causes it too."""


@dataclass(frozen=True, slots=True)
class Answer(Reply):
    """The reply to a command that was carried out. `content` is the member with the command's name."""

    content: Any = None


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The server ended the connection for a reason that a new connection mends."""

    reason: str


End = NoReply | Goodbye | GaplessError
"""Why a connection ended."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command without its id, written once: every attempt sends the same bytes."""

    method: str
    content: bytes

    @classmethod
    def of(cls, method: str, members: Mapping[str, Any]) -> Command:
        """Raises `PayloadTooLarge` if no message can carry it; `ValueError` and `TypeError` like JSON."""
        content = json_body(members)
        if len(content) > MAX_COMMAND_BYTES:
            detail = f"a command has {len(content)} bytes; at most {MAX_COMMAND_BYTES} fit into a message"
            raise PayloadTooLarge(detail, code="payload_too_large", status=413)
        return cls(method, content)

    def line(self, command_id: int) -> bytes:
        """The command as it is sent."""
        return b'{"id":%d,"%b":%b}' % (command_id, self.method.encode(), self.content)


def read_line(line: str) -> dict[str, Any]:
    """A reply, a push, or (empty) a ping. Raises `ProtocolError`."""
    said = parse_json(line)
    if not isinstance(said, dict):
        raise ProtocolError(f"not a line of the protocol: {line[:200]!r}")
    return said


def outcome_of(method: str, said: Mapping[str, Any]) -> Reply:
    """The outcome of a command from its reply. Raises `ProtocolError`."""
    if (error := said.get("error")) is not None:
        return _refusal(method, error)
    if method not in said:
        raise ProtocolError(f"not the reply to {method}: {said!r:.200}")
    return Answer(200, {}, b"", said[method])


def _refusal(method: str, error: Any) -> Reply:
    code = error.get("code") if isinstance(error, dict) else None
    if not isinstance(code, int):
        raise ProtocolError(f"not an error of a command: {error!r:.200}")
    status, name = _STATUSES.get(code, (500 if error.get("temporary") is True else 400, f"error_{code}"))
    if code == 106 and method in ("subscribe", "consume"):
        status, name = 400, "invalid_request"  # It is about their number.
    if code == 102 and method != "publish":
        name = "subscription_not_found"
    detail = str(error.get("message") or f"the server answered with error {code}")
    problem = {"code": name, "detail": detail, "retryable": error.get("temporary") is True}
    return Reply(status, {}, json_body(problem))


def ping_seconds(connected: Any) -> float:
    """The time between pings, from the reply to `connect`."""
    said = connected.get("ping") if isinstance(connected, dict) else None
    if isinstance(said, int | float) and 0 < said <= MAX_PING_SECONDS:
        return float(said)
    return DEFAULT_PING_SECONDS


def end_of(code: int | None, reason: str) -> End:
    """Why a connection ended that was closed with this code; None if it was not closed but lost."""
    if code is None:
        return NoReply("the connection was lost")
    shown = f"the connection was closed with {code}{' ' if reason else ''}{reason}"
    if code in _GOODBYES:
        return Goodbye(_GOODBYES[code])
    if code in _OWN_FAULTS:
        return ProtocolError(shown, code="protocol")
    for_good = (3500 <= code < 4000 and code != _LATE_CONNECT) or 4500 <= code < 5000
    return GaplessError(shown, code=f"closed_{code}") if for_good else NoReply(shown)


def unknown(end: End, *, sent: bool) -> NoReply:
    """The outcome of a command whose connection ended before its reply."""
    match end:
        case NoReply():
            return NoReply(end.reason, sent=sent, passing=end.passing, cause=end.cause)
        case Goodbye():
            return NoReply(f"the server ended the connection: {end.reason}", sent=sent)
        case GaplessError():
            return NoReply(str(end), sent=sent, passing=False, cause=end)


def refusal_of(status: int, headers: Mapping[str, str], body: bytes) -> Break:
    """The outcome of a handshake that was answered without a WebSocket. Raises `ProtocolError` unless that is
    an error: a login page must not look like an open connection."""
    if status < 400:
        raise ProtocolError(f"expected a WebSocket, got status {status}", status=status)
    return Reply(status, headers, body)
