"""Presence over WebSocket: the commands, and the pushes of joins and leaves."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from app.faces.websocket.framing import Framing
from app.faces.websocket.publications import push
from subscriptions.domain.names import check_channel
from subscriptions.domain.presence import Change
from subscriptions.domain.principal import Action, Noun, Principal
from subscriptions.engine.presence import Presence

MAX_CLIENTS: Final = 1000
"""Clients in a reply. The pages over HTTP have all."""

_encode: Final = msgspec.json.Encoder().encode


async def read_presence(principal: Principal, channel: str, presence: Presence) -> bytes:
    """The first clients on a channel by their ids. Raises `invalid_request`, `forbidden`, `unavailable`."""
    place = _readable(principal, channel)
    page = await presence.page(place, "", MAX_CLIENTS)
    found = {"presence": {client.id: _info(client.id, client.user) for client in page.clients}}
    return _encode(found | _incomplete(page.complete and not page.has_more))


async def read_presence_stats(principal: Principal, channel: str, presence: Presence) -> bytes:
    """How many clients and users are on a channel. Raises `invalid_request`, `forbidden`, `unavailable`."""
    place = _readable(principal, channel)
    stats = await presence.stats(place)
    return _encode({"num_clients": stats.clients, "num_users": stats.users} | _incomplete(stats.complete))


def _readable(principal: Principal, channel: str) -> tuple[str, str]:
    principal.require((Action.SUBSCRIBE,), Noun.CHANNEL, (check_channel(channel),))
    return principal.namespace, channel


class PresencePushes:
    """Joins and leaves for subscriptions to one channel."""

    shared: Final = True

    def __init__(self, framing: Framing) -> None:
        self.name = framing.wire()
        self._frame = framing.frame

    def change(self, channel: str, change: Change) -> bytes:
        info = {"info": _info(change.client, change.user)}
        return self._frame(push(channel, b"join" if change.joined else b"leave", _encode(info)))

    def count(self, channel: str, clients: int) -> bytes:
        return self._frame(push(channel, b"presence", _encode({"clients": clients})))


class NamedPresencePushes:
    """Joins and leaves for a subscription to several channels. It has a name of its own, so each push also
    says which channel it is about."""

    shared: Final = False

    def __init__(self, name: str, framing: Framing) -> None:
        self.name = framing.wire(name)
        self._frame = framing.frame
        self._named = name

    def change(self, channel: str, change: Change) -> bytes:
        info = {"channel": channel, "info": _info(change.client, change.user)}
        return self._frame(push(self._named, b"join" if change.joined else b"leave", _encode(info)))

    def count(self, channel: str, clients: int) -> bytes:
        return self._frame(push(self._named, b"presence", _encode({"channel": channel, "clients": clients})))


def _incomplete(complete: bool) -> dict[str, bool]:
    """The protocol has no such member, so it is there only where it says something."""
    return {} if complete else {"complete": False}


def _info(client: str, user: str | None) -> dict[str, Any]:
    """A client without a user has the user \"\" in the protocol."""
    return {"client": client, "user": user or ""}
