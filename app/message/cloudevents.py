"""Reads and writes CloudEvents 1.0 without losing an attribute.

In: `type` becomes the message's type, the `partitionkey` extension its key, `data` and `data_base64` its
payload (an event without data has the payload null). Every other attribute, required or extension, becomes a
header `ce-<attribute>` with its value as text. `specversion` must be 1.0 and is not kept. Attributes that
begin with `gapless` belong to the service. It writes them on the way out and drops them on the way in, so
that an event read from one channel can be sent to another.

Out: the reverse. A message that did not come as a CloudEvent gets `id` from the message id, `source` from its
channel and `time` from its creation. `sequence` (the official extension, whose values compare as strings) is
the seq padded with zeros. `gaplessid`, `gaplesschannel`, `gaplessseq`, `gaplesssender` and `gaplessheaders`
(the other headers, as the text of a JSON object) carry the values without an attribute of their own. Integers
among them are strings, because an Integer of CloudEvents has 32 bits. `gaplesstarget`, `gaplessaction`,
`gaplessthrough`, `gaplessannotation`, `gaplessmode` and `gaplessremove` are of a message that changes another
one, `gaplessversion`, `gaplessreplies`, `gaplessannotations` (the text of a JSON object) and
`gaplessdeleted` of an original.

Values of extensions come back as strings. As in the HTTP binary mode, a number or boolean keeps its canonical
text and loses its type.
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from datetime import datetime
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec

from app.message import json, limits
from app.message.head import Form, PublishHead
from app.message.times import rfc3339
from subscriptions.domain.errors import GaplessError, invalid
from subscriptions.domain.model import Message, NewMessage, Original

PREFIX: Final = "ce-"
OURS: Final = "gapless"

_JSON: Final = "application/json"
_ATTRIBUTE: Final = re.compile("[a-z0-9]+")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_REQUIRED: Final = ("id", "source", "type")
_NEVER_EMPTY: Final = (
    "id",
    "source",
    "subject",
    "time",
    "datacontenttype",
    "dataschema",
    "partitionkey",
    "sequence",
)
_decode_any: Final = msgspec.json.Decoder().decode
_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_array: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_base64: Final = msgspec.json.Decoder(bytes).decode
_encode: Final = msgspec.json.Encoder().encode
_decode_headers: Final = msgspec.json.Decoder(dict[str, str]).decode


def parse(channel: str, head: PublishHead, body: bytes, sender: str | None) -> tuple[NewMessage, ...]:
    """The events of a request in any of the three modes. Raises `malformed_json`, `invalid_request` about an
    attribute, or `payload_too_large`."""
    if head.form is Form.BINARY_EVENT:
        return (_from_headers(channel, head, body, sender),)
    value = json.check(body)
    if head.form is Form.EVENT:
        return (_from_object(channel, body, value, sender),)
    if not isinstance(value, list) or not 1 <= len(value) <= limits.MAX_MESSAGES:
        raise invalid("body", f"must be an array of 1 to {limits.MAX_MESSAGES} events")
    events = []
    for index, raw in enumerate(_decode_array(body)):
        try:
            events.append(_from_object(channel, bytes(raw), value[index], sender))
        except GaplessError as error:
            raise limits.within(error, f"[{index}]") from None
    return tuple(events)


def _from_object(channel: str, raw: bytes, value: Any, sender: str | None) -> NewMessage:
    if not isinstance(value, dict):
        raise invalid("body", "must be an object: one CloudEvent")
    attributes = {
        name: _text(name, member)
        for name, member in value.items()
        if member is not None and name not in ("data", "data_base64")
    }
    members = _decode_members(raw)
    if value.get("data_base64") is None:
        data = json.one_line(bytes(members["data"])) if "data" in members else b"null"
        return _event(channel, attributes, data, None, sender)
    if "data" in members:
        raise invalid("data_base64", "cannot be given together with data")
    try:
        binary = _decode_base64(members["data_base64"])
    except msgspec.ValidationError:
        raise invalid("data_base64", "is not base64") from None
    return _event(channel, attributes, None, binary, sender)


def _text(name: str, value: object) -> str:
    """An attribute's canonical text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int)):
        return str(value)
    raise invalid(name, "must be a string, a whole number or a boolean")


def _from_headers(channel: str, head: PublishHead, body: bytes, sender: str | None) -> NewMessage:
    attributes = {name: _percent_decoded(name, value) for name, value in head.event.items()}
    if head.media_type:
        attributes["datacontenttype"] = head.media_type
    essence = head.media_type.partition(";")[0].strip().lower()
    if not body:
        return _event(channel, attributes, b"null", None, sender)
    if essence in ("", _JSON, "text/json") or essence.endswith("+json"):
        json.check(body)
        return _event(channel, attributes, json.one_line(body), None, sender)
    return _event(channel, attributes, None, body, sender)


def _percent_decoded(name: str, value: bytes) -> str:
    try:
        return unquote_to_bytes(value).decode()
    except UnicodeDecodeError:
        raise invalid(name, "is not UTF-8, percent-encoded") from None


def _event(
    channel: str, attributes: dict[str, str], data: bytes | None, binary: bytes | None, sender: str | None
) -> NewMessage:
    _check_attributes(attributes)
    if data is not None:
        limits.check_size(data, "data")
    else:
        limits.check_size(binary or b"", "data_base64")
    key = attributes.get("partitionkey")
    headers = {
        PREFIX + name: value
        for name, value in attributes.items()
        if name not in ("specversion", "type", "partitionkey") and not name.startswith(OURS)
    }
    if headers.get("ce-datacontenttype") == _JSON:
        del headers["ce-datacontenttype"]
    return NewMessage(
        channel=channel,
        data=data,
        binary=binary,
        type=limits.check_type(attributes["type"]),
        key=None if key is None else limits.check_key(key),
        headers=limits.check_headers(headers),
        sender=sender,
    )


def _check_attributes(attributes: dict[str, str]) -> None:
    for name in attributes:
        if _ATTRIBUTE.fullmatch(name) is None or name == "data":
            raise invalid(name, "is no attribute name: those are lower-case letters and digits")
    if attributes.get("specversion") != "1.0":
        raise invalid("specversion", "must be 1.0")
    for name in _REQUIRED:
        if not attributes.get(name):
            raise invalid(name, "is required and must not be empty")
    for name in _NEVER_EMPTY:
        if attributes.get(name) == "":
            raise invalid(name, "must not be empty")
    if "time" in attributes and not _is_time(attributes["time"]):
        raise invalid("time", "must be a moment as in RFC 3339")


def _is_time(text: str) -> bool:
    if _TIME.fullmatch(text) is None:
        return False
    try:
        # Digits beyond microseconds and a leap second are valid and kept; only the rest is checked here.
        datetime.fromisoformat(text[:10] + "T" + text[11:17] + min(text[17:19], "59"))
    except ValueError:
        return False
    return True


def original_to_cloudevent(original: Original) -> bytes:
    """A message as it is after all changes, as `to_cloudevent`."""
    return to_cloudevent(original.message, original)


def to_cloudevent(message: Message, original: Original | None = None) -> bytes:
    """The message as one CloudEvent in the JSON format, on one line of UTF-8."""
    headers = _decode_headers(message.headers) if message.headers else {}
    event = {"specversion": "1.0", "type": message.type, **_defaults(message)}
    others = {}
    for name, value in headers.items():
        attribute = name.removeprefix(PREFIX)
        if attribute == name or not _may_be_sent(attribute):
            others[name] = value
        elif value or attribute not in _NEVER_EMPTY:
            event[attribute] = value
    if message.key:
        event["partitionkey"] = message.key
    if message.sender is not None:
        event["gaplesssender"] = message.sender
    if others:
        event["gaplessheaders"] = _encode(others).decode()
    if message.change is not None:
        said = _decode_any(message.change).items()
        event |= {OURS + name: value if value is True else str(value) for name, value in said}
    if original is not None:
        event |= {"gaplessversion": str(original.version), "gaplessreplies": str(original.replies)}
        event["gaplessannotations"] = original.annotations.decode()
        if original.deleted:
            return _encode(event | {"gaplessdeleted": True})
    if message.data is not None:
        return _encode(event)[:-1] + b',"data":' + message.data + b"}"
    payload = b2a_base64(message.binary or b"", newline=False)
    return _encode(event)[:-1] + b',"data_base64":"' + payload + b'"}'


def _defaults(message: Message) -> dict[str, str]:
    """The values of attributes that the message does not have."""
    return {
        "id": str(message.id),
        "source": f"/channels/{message.channel}",
        "time": rfc3339(message.created_at_us).decode(),
        "datacontenttype": _JSON if message.data is not None else "application/octet-stream",
        "sequence": f"{message.seq:016d}",
        "gaplessid": str(message.id),
        "gaplesschannel": message.channel,
        "gaplessseq": str(message.seq),
    }


def _may_be_sent(attribute: str) -> bool:
    """Whether a `ce-` header of a message can be this attribute. Any client may have written the header."""
    return (
        _ATTRIBUTE.fullmatch(attribute) is not None
        and attribute not in ("specversion", "type", "data", "partitionkey")
        and not attribute.startswith(OURS)
    )
