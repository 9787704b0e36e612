"""The output of commands on stdout: JSON, one value per line, until the reader closes it."""

from __future__ import annotations

import os
import select
import stat
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from gapless_cli.terminal import shown_json

if TYPE_CHECKING:
    from gapless import Channel, Ephemeral, Message, Published, Scheduled

_encode = msgspec.json.Encoder().encode


def write_line(value: Any, *, flush: bool = True) -> None:
    """Writes one value as JSON on one line. With `flush` the reader of a pipe has it when this returns. A
    terminal gets no control character."""
    sys.stdout.buffer.write(shown_json(_encode(value)) + b"\n")
    if flush:
        sys.stdout.buffer.flush()


@contextmanager
def until_closed() -> Iterator[None]:
    """Ends its block silently when the reader of stdout has gone, as after `| head`."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter would write the rest of the buffer at its end, and report an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def when_reader_leaves(act: Callable[[], None]) -> threading.Event:
    """Calls `act` in another thread once stdout is a pipe without a reader. The event is set then, too.

    A write would fail too, but on a quiet channel the next write may be hours away.
    """
    descriptor = sys.stdout.fileno()
    gone = threading.Event()
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return gone

    def watch() -> None:
        poll = select.poll()
        poll.register(descriptor, 0)
        poll.poll()
        gone.set()
        act()

    threading.Thread(target=watch, daemon=True).start()
    return gone


def moment(at: datetime) -> str:
    """A time as the service writes it."""
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def change_json(message: Message | Scheduled) -> dict[str, Any]:
    """What a message says about an earlier one; empty if it changes none."""
    if message.target is None:
        return {}
    shown: dict[str, Any] = {"target": message.target, "action": message.action}
    if message.through is not None:
        shown["through"] = message.through
    if message.annotation is not None:
        shown |= {"annotation": message.annotation, "mode": message.mode}
        shown |= {"remove": True} if message.remove else {}
    return shown


def message_json(message: Message) -> dict[str, Any]:
    """A message as the service shows it: null members and empty headers left out."""
    from gapless import Original

    shown: dict[str, Any] = {"id": message.id, "channel": message.channel, "seq": message.seq}
    shown |= _content(message)
    shown["created_at"] = moment(message.created_at)
    if message.expires_at is not None:
        shown["expires_at"] = moment(message.expires_at)
    shown |= change_json(message)
    if isinstance(message, Original):
        shown |= {"version": message.version, "replies": message.replies, "annotations": message.annotations}
        if message.deleted:
            del shown["data"]
            shown["deleted"] = True
    return shown


def ephemeral_json(message: Ephemeral) -> dict[str, Any]:
    """A message that is not stored, in the same form."""
    return {"channel": message.channel, **_content(message)}


def _content(message: Message | Ephemeral) -> dict[str, Any]:
    content: dict[str, Any] = {"type": message.type}
    if message.key is not None:
        content["key"] = message.key
    content["data_base64" if isinstance(message.data, bytes) else "data"] = data_json(message.data)
    if message.headers:
        content["headers"] = dict(message.headers)
    if message.sender is not None:
        content["sender"] = message.sender
    return content


def data_json(data: Any) -> Any:
    """A message's data; bytes as base64."""
    return b64encode(data).decode() if isinstance(data, bytes) else data


def published_json(published: Published) -> dict[str, Any]:
    """The answer to a publish; it has `replayed` if an earlier attempt had stored the message."""
    shown: dict[str, Any] = {"id": published.id, "channel": published.channel, "seq": published.seq}
    shown["created_at"] = moment(published.created_at)
    return shown | ({"replayed": True} if published.replayed else {})


def channel_json(channel: Channel) -> dict[str, Any]:
    """A channel as the service shows it."""
    kept = {"max_age": channel.retention.max_age, "max_messages": channel.retention.max_messages}
    shown: dict[str, Any] = {
        "name": channel.name,
        "last_id": channel.last_id,
        "last_seq": channel.last_seq,
        "first_seq": channel.first_seq,
        "retention": {name: value for name, value in kept.items() if value is not None},
    }
    if channel.created_at is not None:
        shown["created_at"] = moment(channel.created_at)
    if channel.message_ttl is not None:
        shown["message_ttl"] = channel.message_ttl
    if channel.origins:
        shown["origins"] = dict(channel.origins)
    if channel.etag is not None:
        shown["etag"] = channel.etag
    return shown
