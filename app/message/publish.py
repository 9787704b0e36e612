"""Reads publish bodies: one message, an array of them, or messages for several channels.

The common case is one typed decode by msgspec in which `data` stays as it was sent. A refused body is read
again to find out why: first whether it is acceptable JSON, then which field is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from app.message import changes, cloudevents, json, limits
from app.message.head import Form, PublishHead
from app.message.refusals import FAILURES, refuse
from subscriptions.domain.errors import Code, GaplessError, invalid
from subscriptions.domain.model import Change, NewMessage, microseconds
from subscriptions.domain.names import check_channel
from subscriptions.domain.principal import Principal

NOBODY: Final = Principal("", grants=())
"""Sends messages of which only the form matters."""
_Seconds = Annotated[float, Meta(ge=0, le=limits.MAX_TTL_S)]
_Moment = Annotated[datetime, Meta(tz=True)]


class MessageToPublish(msgspec.Struct, forbid_unknown_fields=True):
    """A message to publish: exactly one of `data` and `data_base64`, at most one of `deliver_at` and `delay`.
    `target` and `action` come together; a deletion and an annotation need no data. Members that may be null
    in a message may be null here."""

    data: Annotated[Raw, Meta(description="Any JSON value.")] | UnsetType = UNSET
    data_base64: limits.Base64 | UnsetType = UNSET
    type: limits.Type | UnsetType = UNSET
    key: limits.Key | UnsetType | None = UNSET
    headers: limits.Headers | UnsetType = UNSET
    sender: limits.Sender | UnsetType | None = UNSET
    ttl: Annotated[float, Meta(gt=0, le=limits.MAX_TTL_S)] | UnsetType | None = UNSET
    deliver_at: _Moment | UnsetType | None = UNSET
    delay: _Seconds | UnsetType | None = UNSET
    ephemeral: bool | UnsetType = UNSET
    target: changes.Target | UnsetType | None = UNSET
    action: changes.Doing | UnsetType | None = UNSET
    through: changes.Through | UnsetType | None = UNSET
    annotation: changes.Annotation | UnsetType | None = UNSET
    mode: changes.Mode | UnsetType | None = UNSET
    remove: bool | UnsetType | None = UNSET


class AddressedMessage(MessageToPublish, kw_only=True, forbid_unknown_fields=True):
    """A message to publish that names its channel."""

    channel: limits.Name


class BatchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Messages to several channels."""

    messages: Annotated[list[AddressedMessage], Meta(min_length=1, max_length=limits.MAX_MESSAGES)]


_Array = Annotated[list[MessageToPublish], Meta(min_length=1, max_length=limits.MAX_MESSAGES)]

_decode_any: Final = msgspec.json.Decoder().decode
_decode_one_or_many: Final = msgspec.json.Decoder(MessageToPublish | _Array).decode
_decode_batch: Final = msgspec.json.Decoder(BatchRequest).decode


class Schedule(NamedTuple):
    """When a message is to be published: at a time (microseconds since the Unix epoch), or after a number of
    seconds from now. One of the two is set."""

    deliver_at_us: int | None
    delay_s: float | None


class Publication(msgspec.Struct, frozen=True):
    """The messages of one request. `is_array` decides the shape of the answer. `schedules` has the time of
    each message; if it is empty, all are published now."""

    messages: tuple[NewMessage, ...]
    is_array: bool
    schedules: tuple[Schedule, ...] = ()

    @property
    def ephemeral(self) -> bool:
        """Whether this is a single message for live subscribers only."""
        return self.messages[0].ephemeral


def parse_publication(
    channel: str, head: PublishHead, body: bytes, who: Principal = NOBODY, *, now_us: int
) -> Publication:
    """Read the body of a publish to one channel that came at `now_us`, in microseconds since the Unix epoch.

    Raises `malformed_json`, `invalid_request` or `payload_too_large`, about a field if one is to blame.
    """
    check_channel(channel)
    if head.form is not Form.JSON:
        is_array = head.form is Form.EVENTS
        events = cloudevents.parse(channel, head, body, who.subject)
        if head.expected_version is not None:
            changes.with_version(events, is_array, head.expected_version)
        return Publication(events, is_array)
    json.check_parts(body)
    try:
        parsed = _decode_one_or_many(body)
        if parsed.__class__ is not list:
            message, keys = _message(parsed, channel, who, _is_plain(body))
            messages: tuple[NewMessage, ...] = (message,)
            schedule = _schedule(parsed)
            schedules: tuple[Schedule, ...] = () if schedule is None else (schedule,)
        else:
            schedules = _schedules(parsed)
            items = [(i, channel) for i in parsed]
            messages, keys = _messages(items, "", who, _is_plain(body), later=bool(schedules))
    except FAILURES as error:
        refuse(body, error)
    json.check_text(body, keys)
    if messages[0].ephemeral and head.expected_last_seq is not None:
        detail = "an ephemeral message has no place in the channel: Expected-Last-Seq does not apply"
        raise GaplessError(Code.INVALID_REQUEST, detail, status=400)
    for each in schedules:
        _check_schedule(each, head, now_us)
    is_array = parsed.__class__ is list
    if head.expected_version is not None:
        messages = changes.with_version(messages, is_array, head.expected_version)
    return Publication(messages, is_array, schedules)


def parse_batch(head: PublishHead, body: bytes, who: Principal = NOBODY) -> tuple[NewMessage, ...]:
    """Read the body of a publish to several channels; raises as `parse_publication` does."""
    if head.form is not Form.JSON:
        detail = "CloudEvents name no channel: publish them to one, or send application/json"
        raise GaplessError(Code.UNSUPPORTED_MEDIA_TYPE, detail)
    json.check_parts(body)
    try:
        parsed = _decode_batch(body)
        messages, keys = addressed(parsed.messages, "messages", who, body)
    except FAILURES as error:
        refuse(body, error)
    json.check_text(body, keys + 1)
    return messages


def parse_addressed(item: AddressedMessage, who: Principal, body: bytes) -> tuple[NewMessage, int]:
    """The message of a command, and the number of its object keys. Raises as `parse_batch`."""
    check_channel(item.channel)
    if _schedule(item) is not None:
        raise invalid(_asked(item)[0], "is not for this way of publishing")
    message, keys = _message(item, item.channel, who, _is_plain(body))
    return message, keys + 1


def addressed(
    items: list[AddressedMessage], place: str, who: Principal, body: bytes
) -> tuple[tuple[NewMessage, ...], int]:
    """The messages at `place` in a body, and the number of their object keys. Raises as `parse_batch`."""
    messages, keys = _messages([(item, item.channel) for item in items], place, who, _is_plain(body))
    return messages, keys + len(messages)


def refuse_expectation(head: PublishHead) -> None:
    """Refuse `Expected-Last-Seq` and `Expected-Version` in a request that is not about one channel. Raises
    `invalid_request`."""
    if head.expected_last_seq is not None or head.expected_version is not None:
        name = "Expected-Version" if head.expected_last_seq is None else "Expected-Last-Seq"
        detail = f"{name} speaks of one channel: publish to /v1/channels/{{channel}}/messages"
        raise GaplessError(Code.INVALID_REQUEST, detail, status=400)


def _is_plain(body: bytes) -> bool:
    """Whether no payload can be too large or hold a line break. One check of the body shows it for all."""
    return len(body) <= limits.MAX_MESSAGE_BYTES and b"\n" not in body and b"\r" not in body


def _messages(
    items: Sequence[tuple[MessageToPublish, str]],
    place: str,
    who: Principal,
    plain: bool,
    *,
    later: bool = False,
) -> tuple[tuple[NewMessage, ...], int]:
    messages = []
    keys = 0
    checked: str | None = None
    for index, (item, channel) in enumerate(items):
        try:
            if channel != checked:
                checked = check_channel(channel)
            message, of_item = _message(item, channel, who, plain)
            if (item.delay is not UNSET or item.deliver_at is not UNSET) and not later and _schedule(item):
                raise invalid(_asked(item)[0], "is for messages to one channel; these are published at once")
            if message.ephemeral:
                raise invalid("ephemeral", "is for a single message; an array is stored as a whole")
        except GaplessError as error:
            raise limits.within(error, f"{place}[{index}]") from None
        messages.append(message)
        keys += of_item
    return tuple(messages), keys


def _message(item: MessageToPublish, channel: str, who: Principal, plain: bool) -> tuple[NewMessage, int]:
    """The message, and the number of object keys in its JSON."""
    kind, key, headers, ttl = item.type, item.key, item.headers, item.ttl
    given = (
        item.data,
        item.data_base64,
        kind,
        key,
        headers,
        item.sender,
        ttl,
        item.deliver_at,
        item.delay,
        item.ephemeral,
        item.target,
        item.action,
        item.through,
        item.annotation,
        item.mode,
        item.remove,
    )
    keys = len(given) - given.count(UNSET)
    data, binary, inside = _payload(item, plain)
    if keys == 1:
        # The most common message: only a payload.
        return NewMessage(channel, data, binary, sender=who.subject), 1 + inside
    sender = who.subject if item.sender is UNSET or item.sender is None else limits.check_sender(item.sender)
    stored_headers = b""
    if headers is not UNSET:
        keys += len(headers)
        stored_headers = limits.check_headers(headers)
    message = NewMessage(
        channel=channel,
        data=data,
        binary=binary,
        type="message" if kind is UNSET else limits.check_type(kind),
        key=None if key is UNSET or key is None else limits.check_key(key),
        headers=stored_headers,
        ttl=None if ttl is UNSET else ttl,
        ephemeral=item.ephemeral is True,
        sender=sender,
        change=_change(item, channel, who),
    )
    return message, keys + inside


def _change(item: MessageToPublish, channel: str, who: Principal) -> Change | None:
    """What it does to its target."""
    asked = changes.Asked(item.target, item.action, item.through, item.annotation, item.mode, item.remove)
    if asked.count(UNSET) == len(asked):
        return None
    change = changes.change_of(asked, channel, who)
    if change is not None and item.ephemeral is True:
        raise invalid("ephemeral", "cannot be given together with target")
    return change


def _payload(item: MessageToPublish, plain: bool) -> tuple[bytes | None, bytes | None, int]:
    """Data, binary and the number of object keys inside the data."""
    if item.data is UNSET:
        if item.data_base64 is UNSET:
            if item.action in ("delete", "annotate"):
                return changes.NOTHING, None, 0
            raise invalid("data", "is required (or data_base64, for binary data)")
        limits.check_size(item.data_base64, "data_base64")
        return None, item.data_base64, 0
    if item.data_base64 is not UNSET:
        raise invalid("data_base64", "cannot be given together with data")
    data = bytes(item.data)
    if not plain:
        data = json.one_line(data)
        limits.check_size(data, "data")
    return data, None, json.count_keys(_decode_any(data), "data")


def _schedules(items: Sequence[MessageToPublish]) -> tuple[Schedule, ...]:
    """When each is to be published; empty if all are published now. A mixture of both is refused."""
    if all(item.delay is UNSET and item.deliver_at is UNSET for item in items):
        return ()
    found = []
    for index, item in enumerate(items):
        try:
            found.append(_schedule(item))
        except GaplessError as error:
            raise limits.within(error, f"[{index}]") from None
    given = [schedule for schedule in found if schedule is not None]
    if 0 < len(given) < len(found):
        now = found.index(None)
        raise invalid(f"[{now}].deliver_at", "is missing: an array is published now, or all of it later")
    return tuple(given)


def _asked(item: MessageToPublish) -> list[str]:
    """The members that ask for later delivery. Null does not ask for it."""
    asked = (("delay", item.delay), ("deliver_at", item.deliver_at))
    return [name for name, value in asked if value is not UNSET and value is not None]


def _schedule(item: MessageToPublish) -> Schedule | None:
    """When the message is to be published; None: now."""
    delay, at = item.delay, item.deliver_at
    if delay is UNSET and at is UNSET:
        return None
    asked = _asked(item)
    if len(asked) == 2:
        raise invalid("deliver_at", "cannot be given together with delay")
    if asked and item.ephemeral is True:
        raise invalid(asked[0], "cannot be asked for an ephemeral message")
    if isinstance(delay, float):
        return Schedule(None, delay)
    # What has passed is due at once. Not every time before 1970 can be stored.
    return Schedule(max(0, microseconds(at)), None) if isinstance(at, datetime) else None


def _check_schedule(schedule: Schedule, head: PublishHead, now_us: int) -> None:
    """Raises `invalid_request`."""
    name = "delay" if schedule.deliver_at_us is None else "deliver_at"
    if head.expected_last_seq is not None:
        raise invalid(name, "cannot be given together with Expected-Last-Seq: nobody knows that seq yet")
    if schedule.deliver_at_us is not None and schedule.deliver_at_us > now_us + limits.MAX_TTL_S * 1_000_000:
        raise invalid(name, "is more than ten years ahead")
