"""Calls that publish: bodies, idempotency keys, and the meaning of the answers."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict

from gapless._call import Call, Request, json_body, json_of, path
from gapless._errors import ProtocolError
from gapless._models import Action, Mode, NewMessage, Payload, Published, published_from
from gapless._retry import Reply


class MessageOptions(TypedDict, total=False):
    """Optional fields of any message. `sender`: in whose name a moderator sends."""

    type: str | None
    key: str | None
    headers: Mapping[str, str] | None
    sender: str | None


class ChangeOptions(TypedDict, total=False):
    """What a message does to an earlier one of its channel, the `target`: `update`, `delete`, `reply` or
    `annotate`. A deletion hides all originals from there up to `through`. An annotation has a name,
    `annotation`, and counts in a `mode`; `remove` takes it back.
    """

    target: int | None
    action: Action | None
    through: int | None
    annotation: str | None
    mode: Mode | None
    remove: bool | None


class BatchOptions(TypedDict, total=False):
    """Options of a publish. `idempotency_key`: up to 255 characters, remembered for 24 h; made by default.

    `expected_last_seq`: publish only if this is the channel's last seq (0: it is empty).
    """

    idempotency_key: str | None
    expected_last_seq: int | None


class PublishOptions(MessageOptions, ChangeOptions, BatchOptions, total=False):
    """The options of `MessageOptions`, `ChangeOptions` and `BatchOptions`; `ttl` is in seconds.
    `expected_version`: publish only if this message changed the target last."""

    ttl: float | None
    expected_version: int | None


class ConnectedPublishOptions(MessageOptions, ChangeOptions, total=False):
    """The options of a publish over WebSocket; `ttl` is in seconds."""

    ttl: float | None


def publish(
    channel: str,
    data: Payload,
    new_key: Callable[[], str],
    *,
    ttl: float | None = None,
    idempotency_key: str | None = None,
    expected_last_seq: int | None = None,
    expected_version: int | None = None,
    **options: Any,
) -> Call[Published]:
    """Publishes one message to one channel."""
    message = NewMessage(data, ttl=ttl, **options)
    headers = key_headers(idempotency_key or new_key(), expected_last_seq, expected_version)
    return posted(path("channels", channel, "messages"), member(message), headers, _one)


def publish_ephemeral(channel: str, data: Payload, **options: Any) -> Call[None]:
    """Sends one message to those who listen now. It is never stored, so a repetition is not recognized."""
    body = {**member(NewMessage(data, **options)), "ephemeral": True}
    where = path("channels", channel, "messages")
    request = Request("POST", where, headers=key_headers(None, None), content=json_body(body))
    return Call(request, lambda reply: None, repeatable=False)


def command_members(
    channel: str, data: Payload, *, ephemeral: bool, ttl: float | None = None, **options: Any
) -> dict[str, Any]:
    """The members of the command `publish` of the WebSocket protocol."""
    body = {"channel": channel, **member(NewMessage(data, ttl=ttl, **options))}
    return body | {"ephemeral": True} if ephemeral else body


def publish_many(
    channel: str,
    messages: Iterable[NewMessage | Payload],
    new_key: Callable[[], str],
    *,
    idempotency_key: str | None = None,
    expected_last_seq: int | None = None,
) -> Call[list[Published]]:
    """Publishes several messages to one channel, all or none."""
    body = [member(as_new_message(message)) for message in messages]
    headers = key_headers(idempotency_key or new_key(), expected_last_seq)
    return posted(path("channels", channel, "messages"), body, headers, _several)


def publish_all(
    messages: Iterable[tuple[str, NewMessage | Payload]],
    new_key: Callable[[], str],
    *,
    idempotency_key: str | None = None,
) -> Call[list[Published]]:
    """Publishes several messages to several channels, all or none."""
    members = [{"channel": channel, **member(as_new_message(message))} for channel, message in messages]
    headers = key_headers(idempotency_key or new_key(), None)
    return posted("/v1/messages", {"messages": members}, headers, _several)


def as_new_message(message: NewMessage | Payload) -> NewMessage:
    """The message itself, or a message with this data and no other fields."""
    return message if isinstance(message, NewMessage) else NewMessage(message)


def member(message: NewMessage) -> dict[str, Any]:
    """The JSON object of a message; fields that are not set get the service's defaults."""
    body: dict[str, Any] = {}
    if isinstance(message.data, bytes | bytearray | memoryview):
        body["data_base64"] = b64encode(message.data).decode()
    else:
        body["data"] = message.data
    said = {
        "type": message.type,
        "key": message.key,
        "headers": dict(message.headers) if message.headers else None,
        "ttl": message.ttl,
        "target": message.target,
        "action": message.action,
        "through": message.through,
        "annotation": message.annotation,
        "mode": message.mode,
        "remove": message.remove,
        "sender": message.sender,
    }
    return body | {name: value for name, value in said.items() if value is not None}


def posted(where: str, body: Any, headers: dict[str, str], decode: Callable[[Reply], Any]) -> Call[Any]:
    """A call that publishes under the idempotency key in its headers. Without one it is not repeatable."""
    # The body is encoded once: every attempt sends the same bytes, as the idempotency key demands.
    request = Request("POST", where, headers=headers, content=json_body(body))
    key = headers.get("Idempotency-Key")
    return Call(request, decode, repeatable=key is not None, idempotency_key=key)


def key_headers(
    idempotency_key: str | None, expected_last_seq: int | None, expected_version: int | None = None
) -> dict[str, str]:
    """The headers of a publish."""
    headers = {"Content-Type": "application/json"}
    if idempotency_key is not None:
        headers["Idempotency-Key"] = idempotency_key
    if expected_last_seq is not None:
        headers["Expected-Last-Seq"] = str(expected_last_seq)
    if expected_version is not None:
        headers["Expected-Version"] = str(expected_version)
    return headers


def was_replayed(reply: Reply) -> bool:
    """Whether an earlier attempt with the same key did what was asked."""
    return reply.headers.get("idempotent-replayed", "").lower() == "true"


def _one(reply: Reply) -> Published:
    return published_from(json_of(reply), replayed=was_replayed(reply))


def _several(reply: Reply) -> list[Published]:
    answer = json_of(reply)
    if not isinstance(answer, dict) or not isinstance(answer.get("messages"), list):
        raise ProtocolError(f"not the answer to a publish: {answer!r:.200}", status=reply.status)
    return [published_from(raw, replayed=was_replayed(reply)) for raw in answer["messages"]]
