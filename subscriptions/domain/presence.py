"""Who is on a channel: the clients of a process, and what is told of those that join and leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

MAX_CHANGES: Final = 100
"""Joins and leaves of one channel that are told one by one at a time; beyond it only their count is."""
MAX_CROWD: Final = 1000
"""With more clients than this on a channel, joins and leaves are not told one by one."""
COUNT_EVERY_S: Final = 1.0
"""At most one count of a channel is told in this time."""

Channel = tuple[str, str]
"""A namespace and the name of a channel in it."""


class ClientInfo(NamedTuple):
    """A client as presence shows it. `user`: the subject of its credential, None without one."""

    id: str
    user: str | None
    connected_at_us: int


class Change(NamedTuple):
    """A client joined a channel or left it."""

    client: str
    user: str | None
    joined: bool
    at_us: int


@dataclass(frozen=True, slots=True)
class Count:
    """What is told where there is too much to tell: only that the clients of a channel have changed."""


class Clients:
    """The clients of one process by channel. A client that names a channel in several subscriptions joins it
    with the first and leaves it with the last."""

    def __init__(self) -> None:
        self._held: dict[Channel, dict[str, ClientInfo]] = {}
        self._users: dict[Channel, Counter[str]] = {}
        self._more: Counter[tuple[Channel, str]] = Counter()
        """Further subscriptions of a client to a channel, if it has several."""

    def __repr__(self) -> str:
        return f"Clients({len(self._held)} channels)"

    @property
    def channels(self) -> list[Channel]:
        """The channels with clients."""
        return list(self._held)

    def of(self, channel: Channel) -> Mapping[str, ClientInfo]:
        """The clients on a channel by their ids."""
        return self._held.get(channel) or {}

    def users(self, channel: Channel) -> Mapping[str, int]:
        """The users on a channel, each with the number of its clients there."""
        return self._users.get(channel) or {}

    def join(self, channel: Channel, client: ClientInfo) -> bool:
        """Returns whether the client was not on the channel before."""
        held = self._held.setdefault(channel, {})
        if client.id in held:
            self._more[channel, client.id] += 1
            return False
        held[client.id] = client
        if client.user is not None:
            self._users.setdefault(channel, Counter())[client.user] += 1
        return True

    def leave(self, channel: Channel, client: ClientInfo) -> bool:
        """Returns whether the client is not on the channel any more, and was before."""
        held = self._held.get(channel)
        if held is None or client.id not in held:
            return False
        if self._more[channel, client.id]:
            self._more[channel, client.id] -= 1
            return False
        del self._more[channel, client.id]
        del held[client.id]
        if not held:
            del self._held[channel]
        users = self._users.get(channel)
        if users is not None and client.user is not None:
            users[client.user] -= 1
            if not users[client.user]:
                del users[client.user]
            if not users:
                del self._users[channel]
        return True


class Announcer:
    """What is told of one channel, from one tick to the next. A client that joined and left between two ticks
    is not told."""

    __slots__ = ("_changes", "_counted_at", "_crowded")

    def __init__(self) -> None:
        self._changes: dict[str, Change] = {}
        self._crowded = False
        self._counted_at = float("-inf")

    @property
    def due(self) -> bool:
        """Whether there is something to tell."""
        return self._crowded or bool(self._changes)

    def is_idle(self, now: float) -> bool:
        """Whether nothing would be lost if this began anew."""
        return not self.due and now - self._counted_at >= COUNT_EVERY_S

    def add(self, change: Change) -> None:
        """A client joined or left."""
        if self._crowded:
            return
        earlier = self._changes.get(change.client)
        if earlier is not None and earlier.joined != change.joined:
            del self._changes[change.client]
            return
        self._changes[change.client] = change
        if len(self._changes) > MAX_CHANGES:
            self.crowd()

    def crowd(self) -> None:
        """Some joined or left who are not named."""
        self._crowded = True
        self._changes.clear()

    def take(self, clients: int, now: float) -> tuple[Change, ...] | Count | None:
        """What to tell now of a channel with so many clients; None: nothing, or nothing yet."""
        if not self.due:
            return None
        if clients > MAX_CROWD:
            self.crowd()
        if not self._crowded:
            changes = tuple(self._changes.values())
            self._changes.clear()
            return changes
        if now - self._counted_at < COUNT_EVERY_S:
            return None
        self._crowded, self._counted_at = False, now
        return Count()
