"""Who is on a channel: the clients of a process, and what is told of those that join and leave."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

MAX_CHANGES: Final = 100
"""Joins and leaves of one channel that are told at a time, one by one. The others wait for the next time."""
MAX_CROWD: Final = 1000
"""With more clients than this on a channel, joins and leaves are not told one by one, nor when more wait."""
COUNT_EVERY_S: Final = 1.0
"""At most one count of a channel is told in this time."""
MAX_CHANNELS_OF_CLIENT: Final = 256
"""On further channels a client is not shown. A stream names 128 at most, and so does each subscription of a
WebSocket connection."""
MAX_CHANNELS: Final = 20_000
"""Channels that a process shows. Each is renewed in Redis at each beat, and a beat must end long before what
it renews expires, also on a busy machine."""
RESERVED_CHANNELS: Final = MAX_CHANNELS // 4
"""The last of these places are kept for clients that are shown on few channels."""
FEW_CHANNELS: Final = 4
"""On so many channels. So some connections that follow very many channels do not hide all others."""

Channel = tuple[str, str]
"""A namespace and the name of a channel in it."""

Key = TypeVar("Key")


class ClientInfo(NamedTuple):
    """A client as presence shows it. `user`: the subject of its credential, None without one."""

    id: str
    user: str | None
    connected_at_us: int

    @property
    def counts_as(self) -> str:
        """The user whom the numbers count: all clients without one are one, as for Centrifugo's clients."""
        return self.user or ""


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
    """The clients of one process by channel, as far as they are shown. A client that names a channel in
    several subscriptions joins it with the first and leaves it with the last.

    One that joins beyond a limit is hidden on that channel, until `fill` finds a place for it."""

    def __init__(
        self,
        *,
        max_channels: int = MAX_CHANNELS,
        max_of_client: int = MAX_CHANNELS_OF_CLIENT,
        reserved: int = RESERVED_CHANNELS,
        few: int = FEW_CHANNELS,
    ) -> None:
        self.beyond_client = 0
        """Channels on which a client was hidden when it joined, because it is shown on too many."""
        self.beyond_process = 0
        """The same, because the process shows too many channels."""
        self._max_channels = max_channels
        self._max_of_client = max_of_client
        self._reserved = reserved
        self._few = few
        self._held: dict[Channel, dict[str, ClientInfo]] = {}
        self._users: dict[Channel, Counter[str]] = {}
        self._channels_of: Counter[str] = Counter()
        """On how many channels a client is shown."""
        self._more: Counter[tuple[Channel, str]] = Counter()
        """Subscriptions of a client to a channel, not counting the first."""
        self._hidden: OrderedDict[str, OrderedDict[Channel, ClientInfo]] = OrderedDict()
        """By the ids of clients: on which channels each is hidden. Those looked at last are at the end."""

    def __repr__(self) -> str:
        return f"Clients({len(self._held)} channels)"

    @property
    def channels(self) -> list[Channel]:
        """The channels with clients."""
        return list(self._held)

    @property
    def hides(self) -> bool:
        """Whether a client is hidden that has not used up its own channels: the process has no place for
        it."""
        return any(self._channels_of[client] < self._max_of_client for client in self._hidden)

    def of(self, channel: Channel) -> Mapping[str, ClientInfo]:
        """The clients on a channel by their ids."""
        return self._held.get(channel) or {}

    def users(self, channel: Channel) -> Mapping[str, int]:
        """The users on a channel, each with the number of its clients there; "": clients without a user."""
        return self._users.get(channel) or {}

    def join(self, channel: Channel, client: ClientInfo) -> bool:
        """Returns whether the client is shown on the channel now, and was not before."""
        if client.id in self.of(channel) or channel in self._hidden.get(client.id, ()):
            self._more[channel, client.id] += 1
            return False
        if self._has_place(channel, client):
            self._show(channel, client)
            return True
        if self._channels_of[client.id] >= self._max_of_client:
            self.beyond_client += 1
        else:
            self.beyond_process += 1
        self._hidden.setdefault(client.id, OrderedDict())[channel] = client
        return False

    def leave(self, channel: Channel, client: ClientInfo) -> bool:
        """Returns whether the client is not shown on the channel any more, and was before."""
        if self._more[channel, client.id]:
            _take_one(self._more, (channel, client.id))
            return False
        if channel in self._hidden.get(client.id, ()):
            self._take_hidden(channel, client.id)
            return False
        held = self._held.get(channel)
        if held is None or client.id not in held:
            return False
        del held[client.id]
        if not held:
            del self._held[channel]
        _take_one(self._channels_of, client.id)
        users = self._users.get(channel)
        if users is not None:
            _take_one(users, client.counts_as)
            if not users:
                del self._users[channel]
        return True

    def fill(self, looks: int) -> list[tuple[Channel, ClientInfo]]:
        """Show hidden clients where there is a place now; returns who is shown. Clients take turns, and each
        turn is for one channel of one client. There are at most so many turns, so that the time is bounded;
        the next call goes on."""
        shown: list[tuple[Channel, ClientInfo]] = []
        without = 0
        while looks > 0 and without < len(self._hidden):
            looks -= 1
            id_, channels = next(iter(self._hidden.items()))
            self._hidden.move_to_end(id_)
            channel, client = next(iter(channels.items()))
            channels.move_to_end(channel)
            if not self._has_place(channel, client):
                without += 1
                continue
            without = 0
            self._take_hidden(channel, id_)
            self._show(channel, client)
            shown.append((channel, client))
        return shown

    def _show(self, channel: Channel, client: ClientInfo) -> None:
        self._held.setdefault(channel, {})[client.id] = client
        self._channels_of[client.id] += 1
        self._users.setdefault(channel, Counter())[client.counts_as] += 1

    def _take_hidden(self, channel: Channel, id_: str) -> None:
        channels = self._hidden[id_]
        del channels[channel]
        if not channels:
            del self._hidden[id_]

    def _has_place(self, channel: Channel, client: ClientInfo) -> bool:
        shown_on = self._channels_of[client.id]
        if shown_on >= self._max_of_client:
            return False
        kept = self._reserved if shown_on >= self._few else 0
        return channel in self._held or len(self._held) < self._max_channels - kept


def _take_one(counter: Counter[Key], key: Key) -> None:
    """No entry is left for what is not there any more."""
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


class Announcer:
    """What is told of one channel, from one tick to the next. Of a client that joined and left between two
    ticks only the leave is told: somebody may have read meanwhile that it is there."""

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
        self._changes[change.client] = change
        if len(self._changes) > MAX_CROWD:
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
            told = list(self._changes)[:MAX_CHANGES]
            return tuple(self._changes.pop(client) for client in told)
        if now - self._counted_at < COUNT_EVERY_S:
            return None
        self._crowded, self._counted_at = False, now
        return Count()
