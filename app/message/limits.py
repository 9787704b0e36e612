"""The limits of one message and of its delivery, checked in the same way for every face."""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from subscriptions.domain.errors import Code, FieldError, GaplessError, invalid
from subscriptions.domain.names import MAX_NAME_CHARACTERS

MAX_MESSAGE_BYTES: Final = 1024 * 1024
MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
MAX_BODY_BYTES: Final = 1024 * 1024
"""The longest body that is no batch. The longest definition of a subscription takes more than half of it when
JSON escapes every character."""
MAX_MESSAGES: Final = 1000
MAX_HEADERS: Final = 64
MAX_HEADERS_BYTES: Final = 8 * 1024
JOURNEY_HEADER: Final = "gapless-journey"
"""The service's own header. A client that republishes a dead letter's copy keeps it, so it does not count
towards the limits of the other headers."""
MAX_JOURNEY_BYTES: Final = 1024 * 1024
"""Longer than a thousand steps of the longest names."""
MAX_KEY_CHARACTERS: Final = 255
MAX_TYPE_CHARACTERS: Final = 128
MAX_TTL_S: Final = 10 * 365 * 24 * 3600
MAX_FILTERS: Final = 128
MAX_ACK_WAIT_S: Final = 86_400
MAX_BACKOFF_S: Final = 604_800

# For the documents. The checks below, or those of the parser, are stricter and say in words what is wrong.
Name = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_NAME_CHARACTERS})]
Type = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_TYPE_CHARACTERS})]
Key = Annotated[str, Meta(extra_json_schema={"maxLength": MAX_KEY_CHARACTERS})]
Sender = Annotated[
    str,
    Meta(
        description="In whose name it is sent: needs `moderate`. Else it is the subject of the credential.",
        extra_json_schema={"minLength": 1, "maxLength": MAX_NAME_CHARACTERS},
    ),
]
Headers = Annotated[
    dict[str, Annotated[str, Meta(extra_json_schema={"maxLength": MAX_JOURNEY_BYTES})]],
    Meta(extra_json_schema={"maxProperties": MAX_HEADERS}),
]
Base64 = Annotated[bytes, Meta(extra_json_schema={"maxLength": (MAX_MESSAGE_BYTES + 2) // 3 * 4})]

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
_encode: Final = msgspec.json.Encoder().encode


def check_printable(text: str, field: str) -> None:
    """Refuse control characters: they break lines in streams, logs and terminals."""
    if not text.isprintable() and _CONTROL.search(text) is not None:
        raise invalid(field, "must not contain control characters")


def check_type(text: str) -> str:
    """Give a message type back, or raise `invalid_request`."""
    return _check_word(text, "type", MAX_TYPE_CHARACTERS)


def check_sender(text: str) -> str:
    """Give a sender back, or raise `invalid_request`."""
    return _check_word(text, "sender", MAX_NAME_CHARACTERS)


def _check_word(text: str, field: str, most: int) -> str:
    if not text:
        raise invalid(field, "must not be empty")
    if len(text) > most:
        raise invalid(field, f"is longer than {most} characters")
    check_printable(text, field)
    return text


def check_key(text: str) -> str:
    """Give a message key back, or raise `invalid_request`."""
    if len(text) > MAX_KEY_CHARACTERS:
        raise invalid("key", f"is longer than {MAX_KEY_CHARACTERS} characters")
    check_printable(text, "key")
    return text


def check_headers(headers: dict[str, str]) -> bytes:
    """Message headers as they are stored: the text of a JSON object, empty for none.

    Raises `invalid_request` if there are too many, if names and values together are too long, or if one holds
    a control character. The journey header has its own limit.
    """
    if not headers:
        return b""
    journey = headers.get(JOURNEY_HEADER)
    if len(headers) - (journey is not None) > MAX_HEADERS:
        raise invalid("headers", f"has more than {MAX_HEADERS} entries")
    text = "".join(headers) + "".join(headers.values())
    own_bytes = 0 if journey is None else len(JOURNEY_HEADER) + len(journey.encode())
    if len(text.encode()) - own_bytes > MAX_HEADERS_BYTES:
        raise invalid("headers", f"takes more than {MAX_HEADERS_BYTES} bytes")
    if own_bytes > MAX_JOURNEY_BYTES:
        raise invalid("headers", f"takes more than {MAX_JOURNEY_BYTES} bytes for {JOURNEY_HEADER}")
    if "" in headers:
        raise invalid("headers", "has an entry with an empty name")
    if not text.isprintable():
        for name, value in headers.items():
            check_printable(name, "headers")
            check_printable(value, f"headers.{name}")
    return _encode(headers)


def check_size(payload: bytes, field: str) -> None:
    """Raise `payload_too_large` about one message's payload."""
    if len(payload) > MAX_MESSAGE_BYTES:
        wrong = f"is longer than {MAX_MESSAGE_BYTES} bytes"
        raise GaplessError(Code.PAYLOAD_TOO_LARGE, f"{field}: {wrong}", errors=(FieldError(field, wrong),))


def within(error: GaplessError, place: str) -> GaplessError:
    """The same error about a field of `place`, such as `messages[3]`."""
    if not error.errors:
        return error
    errors = tuple(FieldError(join(place, e.field), e.message) for e in error.errors)
    detail = "; ".join(f"{e.field}: {e.message}" for e in errors)
    return GaplessError(error.code, detail, errors=errors, retry_after=error.retry_after, status=error.status)


def join(place: str, field: str) -> str:
    """A field path below another: `messages[3]` and `type` make `messages[3].type`."""
    if not place or field == "body":
        return field
    return f"{place}{field}" if field.startswith("[") else f"{place}.{field}"
