"""Reads from the headers of a publish the form of its body and its conditions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from typing import Final

import msgspec

from subscriptions.domain.errors import MAX_FIELD_CHARACTERS, Code, GaplessError

MAX_IDEMPOTENCY_KEY_CHARACTERS: Final = 255
MAX_SEQ: Final = 2**53

_WANTED: Final = frozenset(
    {
        b"content-type",
        b"content-encoding",
        b"content-length",
        b"idempotency-key",
        b"expected-last-seq",
        b"expected-version",
    }
)
_IDEMPOTENCY_KEY: Final = re.compile(rb"[\x20-\x7e]{1,%d}" % MAX_IDEMPOTENCY_KEY_CHARACTERS)
_NUMBER: Final = re.compile(rb"[0-9]{1,16}")


class Form(Enum):
    """The form in which the body holds its message or messages."""

    JSON = "application/json"
    EVENT = "application/cloudevents+json"
    EVENTS = "application/cloudevents-batch+json"
    BINARY_EVENT = "CloudEvents binary mode"


class PublishHead(msgspec.Struct, frozen=True):
    """`content_length` is in bytes, None when not announced. `event` holds the raw `ce-` headers, by name
    without the prefix, and `media_type` the content type as sent; both serve binary mode. Without a content
    type the form is JSON, and then there may be no body."""

    form: Form
    media_type: str
    gzip: bool
    content_length: int | None
    idempotency_key: str | None
    expected_last_seq: int | None
    event: dict[str, bytes]
    expected_version: int | None = None


def read_head(headers: Iterable[tuple[bytes, bytes]], *, events: bool = True) -> PublishHead:
    """Read the headers (names in lower case) of a publish. `events`: whether the route reads CloudEvents.

    Raises `unsupported_media_type` for a media type not read here, and `invalid_request` with 400 for a
    header that is malformed or repeated.
    """
    found: dict[bytes, bytes] = {}
    event: dict[str, bytes] = {}
    for name, value in headers:
        if name in _WANTED:
            if name in found:
                raise _bad(name, "occurs more than once")
            found[name] = value
        elif name.startswith(b"ce-"):
            if (attribute := name[3:].decode("latin-1")) in event:
                raise _bad(name, "occurs more than once")
            event[attribute] = value
    media_type = found.get(b"content-type", b"")
    return PublishHead(
        form=_form(media_type, "specversion" in event, events),
        media_type=media_type.decode("latin-1"),
        gzip=is_gzip(found.get(b"content-encoding", b"identity")),
        content_length=_length(found.get(b"content-length")),
        idempotency_key=_idempotency_key(found.get(b"idempotency-key")),
        expected_last_seq=_number(found, b"expected-last-seq"),
        expected_version=_number(found, b"expected-version"),
        event=event,
    )


@lru_cache(maxsize=256)
def _form(media_type: bytes, has_event_headers: bool, events: bool) -> Form:
    essence, *parameters = media_type.decode("latin-1").lower().split(";")
    form = next((form for form in Form if form.value == essence.strip()), None)
    if has_event_headers and form not in (Form.EVENT, Form.EVENTS):
        return Form.BINARY_EVENT
    if not media_type:
        return Form.JSON
    if form is None:
        others = ", or that of a CloudEvent" if events else ""
        raise _unsupported(f"Content-Type must be application/json{others}")
    for parameter in parameters:
        name, _, value = parameter.strip().partition("=")
        if name.strip() == "charset" and value.strip(' "') not in ("utf-8", "utf8", "us-ascii"):
            raise _unsupported("JSON is read in UTF-8 only")
    return form


def is_gzip(encoding: bytes) -> bool:
    """Whether a body is compressed, by its Content-Encoding. Raises `unsupported_media_type`."""
    name = encoding.strip().lower()
    if name in (b"identity", b""):
        return False
    if name in (b"gzip", b"x-gzip"):
        return True
    raise _unsupported("Content-Encoding must be gzip or absent")


def _length(value: bytes | None) -> int | None:
    # The HTTP parser has checked it. If it is not a number, the reader of the body finds out.
    return int(value) if value is not None and value.isdigit() and len(value) < 20 else None


def _idempotency_key(value: bytes | None) -> str | None:
    if value is None:
        return None
    if _IDEMPOTENCY_KEY.fullmatch(value) is None:
        wrong = f"must be 1 to {MAX_IDEMPOTENCY_KEY_CHARACTERS} printable ASCII characters"
        raise _bad(b"idempotency-key", wrong)
    return value.decode("ascii")


def _number(found: dict[bytes, bytes], name: bytes) -> int | None:
    value = found.get(name)
    if value is None:
        return None
    if _NUMBER.fullmatch(value) is None or int(value) > MAX_SEQ:
        raise _bad(name, f"must be a whole number from 0 to {MAX_SEQ}")
    return int(value)


def _bad(name: bytes, wrong: str) -> GaplessError:
    shown = name[:MAX_FIELD_CHARACTERS].decode("latin-1")
    header = "-".join(part.capitalize() for part in shown.split("-"))
    return GaplessError(Code.INVALID_REQUEST, f"{header} {wrong}", status=400)


def _unsupported(detail: str) -> GaplessError:
    return GaplessError(Code.UNSUPPORTED_MEDIA_TYPE, detail)
