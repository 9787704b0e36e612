"""Port for presence: who is on a channel, over all processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from subscriptions.domain.presence import Channel, ClientInfo


@dataclass(frozen=True, slots=True)
class PresencePage:
    """Clients on a channel by their ids; the id of the last one is the cursor of the next page. Not
    `complete`: some that belong on it may be missing, because a process has no place to show all."""

    clients: list[ClientInfo]
    has_more: bool
    complete: bool


@dataclass(frozen=True, slots=True)
class PresenceStats:
    """How many clients are on a channel, and how many users they are; all clients without a user count as
    one. `complete` as for a page."""

    clients: int
    users: int
    complete: bool


class PresencePort(Protocol):
    """Shows the clients of this process to all processes, and theirs to this one. It shows less while the
    storage is away, and repairs itself. Nothing here makes a publish or a subscribe wait."""

    @property
    def connected(self) -> bool:
        """Whether it can be asked now."""
        ...

    async def run(self) -> None:
        """Show the clients of this process until cancelled."""
        ...

    def changed(self, channel: Channel, client: ClientInfo) -> None:
        """The client joined or left, and this process's `Clients` say so already. Never waits."""
        ...

    async def put_all(self) -> None:
        """Wait until what changed so far is on the pages of all processes. Raises `unavailable`, after a few
        seconds at most."""
        ...

    async def opened(self) -> None:
        """Wait until it is connected, or until the first try to connect failed."""
        ...

    async def lost(self) -> str:
        """The name of the next process that died without a word. Its clients are on no page any more."""
        ...

    async def lost_clients(
        self, process: str, channels: Sequence[Channel], limit: int
    ) -> Mapping[Channel, Sequence[ClientInfo]]:
        """The clients that a lost process had on these channels, at most `limit` of each. Raises
        `unavailable`."""
        ...

    async def doubt(self, process: str) -> None:
        """Tell a lost process that its clients were said to have left: it may only have been cut off. Raises
        `unavailable`."""
        ...

    def doubted(self) -> bool:
        """Whether others said that the clients of this process have left, since this was asked before."""
        ...

    async def page(self, channel: Channel, after: str, limit: int) -> PresencePage:
        """At most `limit` clients whose ids are above `after`. What changed in this process is in it. Raises
        `unavailable`, which says whether the storage does not answer or too many ask at once."""
        ...

    async def stats(self, channel: Channel) -> PresenceStats:
        """The numbers of clients and users. Raises as `page`."""
        ...

    async def remove(self) -> None:
        """Take the clients of this process away, if that can be done soon. It does not run any more."""
        ...
