"""Who is on a channel, and who joins and leaves it: values, and how they are read from JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gapless._errors import ProtocolError


@dataclass(frozen=True, slots=True)
class PresentClient:
    """A client on a channel. `user` is the subject of its credential, if it has one."""

    client: str
    user: str | None


@dataclass(frozen=True, slots=True)
class Presence:
    """The clients on a channel, the first 1000 by their ids. If it is not `complete`, some may be missing."""

    clients: tuple[PresentClient, ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class Joined:
    """A client joined the channel."""

    channel: str
    client: str
    user: str | None


@dataclass(frozen=True, slots=True)
class Left:
    """A client left the channel."""

    channel: str
    client: str
    user: str | None


@dataclass(frozen=True, slots=True)
class PresenceChanged:
    """Clients joined or left, too many to be told one by one. So many are on the channel now."""

    channel: str
    clients: int


PresenceEvent = Joined | Left | PresenceChanged


def presence_from(raw: Any) -> Presence:
    """A `Presence` from the reply to the command `presence`. Raises `ProtocolError`."""
    try:
        clients = tuple(_client(one) for one in raw["presence"].values())
        return Presence(clients, bool(raw.get("complete", True)))
    except (KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(f"not the clients of a channel: {raw!r:.200}") from error


def presence_event_from(kind: str, raw: Any) -> PresenceEvent:
    """The event of a push `join`, `leave` or `presence`. Raises `ProtocolError`."""
    try:
        if kind == "presence":
            return PresenceChanged(raw["channel"], int(raw["clients"]))
        who = _client(raw["info"])
        return (Joined if kind == "join" else Left)(raw["channel"], who.client, who.user)
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"not a {kind} event: {raw!r:.200}") from error


def _client(raw: Any) -> PresentClient:
    return PresentClient(raw["client"], raw["user"] or None)
