"""Port for markers: how far users have come in channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from subscriptions.domain.marker import Marker, NewMarker, Unread


class MarkerPort(Protocol):
    """Markers of channels. Methods raise `unavailable`."""

    async def mark(self, namespace: str, markers: Sequence[NewMarker]) -> list[tuple[Marker, bool]]:
        """Move markers, all or none, each forward only unless it is forced. An id beyond the channel's newest
        message stands for that one. Returns each as it is now, and whether it moved, by channel.
        Raises `channel_not_found`."""
        ...

    async def of_user(
        self, namespace: str, user: str, name: str, pattern: str | None, after: int, limit: int
    ) -> list[Unread]:
        """The channels with such a marker of this user, in the order of `place` after that. `pattern`: a
        regular expression for their names. Each row is of one moment."""
        ...

    async def of_channel(
        self, namespace: str, channel: str, name: str, after: str, limit: int
    ) -> list[Marker]:
        """The markers of this name in a channel, in the order of users after that. Raises
        `channel_not_found`."""
        ...
