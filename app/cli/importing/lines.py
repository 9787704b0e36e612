"""From a line of the file to a member of a publish request, checked by the rules of the service itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from app.cli.importing.source import MAX_LINE_BYTES
from app.message import json
from app.message.head import Form, PublishHead
from app.message.publish import parse_batch
from subscriptions.domain.errors import GaplessError
from subscriptions.domain.model import GIVEN_BY_SERVER, NewMessage

_BOM = b"\xef\xbb\xbf"
_HEAD = PublishHead(Form.JSON, "application/json", False, None, None, None, {})
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class BadLineError(Exception):
    """What is wrong with one line."""


@dataclass(frozen=True, slots=True)
class Bad:
    """A line that is no message, and why."""

    line: int
    why: str


def member_of(raw: bytes | None, channel: str | None) -> bytes | None:
    """The line as it goes into a request: as it stands, where it can; None for an empty line.

    `channel` is for lines that name none. Raises `BadLineError`; `refusals` finds what this leaves unchecked.
    """
    if raw is None:
        raise BadLineError(f"longer than {MAX_LINE_BYTES} bytes")
    text = raw.removeprefix(_BOM).strip()
    if not text:
        return None
    members = _decode(text)
    if "target" in members:
        raise BadLineError("changes another message, which has another id here")
    if "channel" in members and GIVEN_BY_SERVER.isdisjoint(members):
        return text
    # Decoding hides a name that stands twice, so this is the last chance to notice.
    _check(text)
    if "channel" not in members:
        if channel is None:
            raise BadLineError("names no channel (--channel is for lines without one)")
        members["channel"] = msgspec.Raw(_encode(channel))
    return _encode({name: value for name, value in members.items() if name not in GIVEN_BY_SERVER})


def body_of(members: Sequence[bytes]) -> bytes:
    """The request that publishes these."""
    return b'{"messages":[%b]}' % b",".join(members)


def checked(members: Sequence[bytes]) -> tuple[NewMessage, ...] | None:
    """The messages, or None when the service would refuse any of them."""
    try:
        return parse_batch(_HEAD, body_of(members))
    except GaplessError:
        return None


def refusal(member: bytes) -> str | None:
    """Why the service would refuse this one, if it would."""
    try:
        parse_batch(_HEAD, body_of([member]))
    except GaplessError as error:
        return error.detail.replace("messages[0].", "").replace("messages[0]: ", "")
    return None


def _decode(text: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _members(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        _check(text)
        raise BadLineError("a message must be a JSON object") from None


def _check(text: bytes) -> None:
    try:
        json.check(text)
    except GaplessError as error:
        raise BadLineError(error.detail.replace("at line 1, column", "at column")) from None
