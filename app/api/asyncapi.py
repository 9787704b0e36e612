"""The AsyncAPI document, which describes the events of streams, and the frames of WebSockets."""

from __future__ import annotations

from typing import Any, Final

from app import VERSION
from app.api import answers, deliveries, events, markers
from app.api.client_commands import ClientCommand, MemberPushed, Pushed, Reply
from app.api.openapi import LICENSE, TITLE, Schemas

_schemas: Final = Schemas()


def _messages(**forms: Any) -> dict[str, Any]:
    return {name: {"name": name, "payload": _schemas.of(form)} for name, form in forms.items()}


_DOCUMENT: Final[dict[str, Any]] = {
    "asyncapi": "3.0.0",
    "info": {
        "title": TITLE,
        "version": VERSION,
        "description": "Live subscriptions over server-sent events: ids rise, and a reconnect with "
        "Last-Event-ID misses no message and repeats none. Deliveries of durable subscriptions: leases end "
        "with the stream. WebSocket: a message holds one command, reply or push on each line.",
        "license": {"name": LICENSE["identifier"]},
    },
    "defaultContentType": "application/json",
    "channels": {
        "subscribe": {
            "address": "/v1/subscribe",
            "messages": _messages(
                message=answers.Message,
                ready=events.StreamReady,
                gap=answers.RetentionGap | events.StreamGap,
                ephemeral=events.EphemeralMessage,
                presence=events.StreamJoin | events.StreamPresence,
                marker=markers.Marker,
                goodbye=events.StreamGoodbye,
            ),
        },
        "consume": {
            "address": "/v1/subscriptions/{name}/consume",
            "parameters": {"name": {"description": "A durable subscription."}},
            "messages": _messages(
                delivery=deliveries.Delivery,
                gap=answers.RetentionGap | events.StreamGap,
                goodbye=events.StreamGoodbye,
            ),
        },
        "websocket": {
            "address": "/v1/ws",
            "messages": _messages(command=ClientCommand, reply=Reply, push=Pushed, member_push=MemberPushed),
        },
    },
    "operations": {
        "say": {
            "action": "receive",
            "channel": {"$ref": "#/channels/websocket"},
            "messages": [{"$ref": "#/channels/websocket/messages/command"}],
            "summary": "Take a command of the Centrifugo client protocol.",
        },
        "reply": {
            "action": "send",
            "channel": {"$ref": "#/channels/websocket"},
            "messages": [
                {"$ref": f"#/channels/websocket/messages/{name}"} for name in ("reply", "push", "member_push")
            ],
            "summary": "Answer it, and push what comes.",
        },
        "follow": {"action": "send", "channel": {"$ref": "#/channels/subscribe"}, "summary": "Follow."},
        "consume": {"action": "send", "channel": {"$ref": "#/channels/consume"}, "summary": "Consume."},
    },
    "components": {"schemas": _schemas.components},
}


def document(root: str) -> dict[str, Any]:
    """The document of an application that runs under the prefix `root`."""
    channels = {
        name: {**channel, "address": root + channel["address"]}
        for name, channel in _DOCUMENT["channels"].items()
    }
    return {**_DOCUMENT, "channels": channels}
