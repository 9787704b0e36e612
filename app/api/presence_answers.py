"""The types of what is answered and told about presence, as in `answers`."""

from __future__ import annotations

from typing import Literal

import msgspec

from app.api.answers import Count, Time


class PresentClient(msgspec.Struct):
    """A client on a channel. `user`: the subject of its credential."""

    client: str
    user: str | None
    connected_at: Time


class PresencePage(msgspec.Struct):
    """A page of the clients on a channel, and how many clients and different users are on it. `complete` is
    false where some of them may be missing."""

    channel: str
    clients: list[PresentClient]
    num_clients: Count
    num_users: Count
    has_more: bool
    cursor: str | None
    complete: bool


class StreamJoin(msgspec.Struct):
    """A client joined a channel or left it."""

    channel: str
    action: Literal["join", "leave"]
    client: str
    user: str | None
    at: Time


class StreamPresence(msgspec.Struct):
    """Clients joined or left, too many to be told one by one; so many are there now."""

    channel: str
    action: Literal["changed"]
    clients: Count
