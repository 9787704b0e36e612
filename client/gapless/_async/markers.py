"""Markers on asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from gapless._async.calls import AsyncNoun
from gapless._calls import markers as calls
from gapless._calls.markers import Marker, Unread


class AsyncMarkers(AsyncNoun):
    """How far users have come in channels: `client.markers`. `user` is the subject of the credential, unless
    it may moderate or none is needed. `name` says in what sense: `read`, `delivered`, or an own one."""

    async def move(
        self,
        channel: str,
        message_id: int,
        *,
        name: str = "read",
        user: str | None = None,
        force: bool = False,
    ) -> Marker:
        """Marks all up to this message, and returns the marker as it is then: it only moves forward, unless
        `force` moves it back. Raises `NotFound`."""
        return await self._call(calls.move(channel, message_id, name, user, force))

    async def move_all(
        self,
        markers: Iterable[tuple[str, int]],
        *,
        name: str = "read",
        user: str | None = None,
        force: bool = False,
    ) -> list[Marker]:
        """Moves up to 1000 markers, pairs of a channel and a message id, all or none."""
        return await self._call(calls.move_all(markers, name, user, force))

    def unread(
        self,
        pattern: str | None = None,
        *,
        name: str = "read",
        user: str | None = None,
        page_size: int = 100,
    ) -> AsyncIterator[Unread]:
        """The channels in which the user has a marker, with how much is unread in each."""
        return self._slices(calls.unread(user, pattern, name, page_size))

    def of(self, channel: str, *, name: str = "read", page_size: int = 100) -> AsyncIterator[Marker]:
        """How far each user has come in a channel, by user. Raises `NotFound`."""
        return self._slices(calls.readers(channel, name, page_size))
