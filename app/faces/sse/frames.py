"""Server-sent events as bytes. Data is always one `data:` line of JSON, so nothing can be injected."""

from __future__ import annotations

from typing import Final

import msgspec

from app.message import deliveries
from app.message.cloudevents import to_cloudevent
from app.message.message import decode_message
from app.message.times import rfc3339
from subscriptions.domain.delivery import Loss
from subscriptions.domain.goodbye import Goodbye
from subscriptions.domain.presence import Change
from subscriptions.engine.entry import Entry
from subscriptions.engine.live.live_subscription import Ephemeral, Gap, HistoryChanged, Ready

HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
"""The headers of a streamed answer."""
RETRY: Final = b"retry: 1000\n"
"""Goes in front of the first event's block. In its own block some clients would take it for an event."""
HEARTBEAT: Final = b":\n"
"""A comment line, without the blank line that would end a block."""


class MessageWire:
    """Messages as `id:` and `data:` with no `event:` field, so that `onmessage` gets them."""

    name: Final = "sse"
    shared: Final = True

    def frame(self, entry: Entry) -> bytes:
        return b"id: %d\ndata: %b\n\n" % (entry.id, entry.body)


class CloudEventWire:
    """The same with CloudEvents as data."""

    name: Final = "sse cloudevents"
    shared: Final = True

    def frame(self, entry: Entry) -> bytes:
        return b"id: %d\ndata: %b\n\n" % (entry.id, to_cloudevent(decode_message(entry.body)))


class PresenceEvents:
    """Joins and leaves as events without an id, because they move no cursor."""

    name: Final = "sse"
    shared: Final = True

    def change(self, channel: str, change: Change) -> bytes:
        action = "join" if change.joined else "leave"
        at = rfc3339(change.at_us).decode()
        joined = {
            "channel": channel,
            "action": action,
            "client": change.client,
            "user": change.user,
            "at": at,
        }
        return event(b"presence", joined)

    def count(self, channel: str, clients: int) -> bytes:
        return event(b"presence", {"channel": channel, "action": "changed", "clients": clients})


def event(name: bytes, data: object) -> bytes:
    """A named event with JSON data."""
    return b"event: %b\ndata: %b\n\n" % (name, msgspec.json.encode(data))


def ready(said: Ready) -> bytes:
    """The `ready` event. It has an id: a client that is cut off before the first message resumes here."""
    return b'id: %d\nevent: ready\ndata: {"cursor":%d}\n\n' % (said.cursor, said.cursor)


def gap(said: Gap | Loss) -> bytes:
    return event(b"gap", deliveries.gap(said.channel, said.first_seq, said.missed))


def history_changed(said: HistoryChanged) -> bytes:
    """A gap because history changed: `ids` are the first and the last id in doubt."""
    data = {"reason": "history_changed", "ids": [said.first_id, said.last_id]}
    return event(b"gap", data if said.channel is None else {"channel": said.channel, **data})


def ephemeral(said: Ephemeral) -> bytes:
    name = b"marker" if said.is_marker else b"ephemeral"
    return b"event: %b\ndata: %b\n\n" % (name, said.body)


def goodbye(reason: Goodbye) -> bytes:
    return event(b"goodbye", {"reason": reason.value})


def delivery(body: bytes) -> bytes:
    """A delivery. It has no id: the server keeps the place of a member."""
    return b"event: delivery\ndata: %b\n\n" % body
