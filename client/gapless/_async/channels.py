"""Channels on asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gapless._async.calls import AsyncNoun
from gapless._calls import channels as calls
from gapless._calls.channels import UNSET, Unset
from gapless._models import Channel, Retention


class AsyncChannels(AsyncNoun):
    """The channels of the service, and their settings: `client.channels`."""

    def list(self, pattern: str | None = None, *, page_size: int = 100) -> AsyncIterator[Channel]:
        """The channels whose names match the pattern; without a pattern, all channels."""
        return self._slices(calls.listed(pattern, page_size))

    async def get(self, name: str) -> Channel:
        """A channel's state and settings. Raises `NotFound`."""
        return await self._call(calls.get(name))

    async def put(
        self,
        name: str,
        *,
        retention: Retention | None = None,
        message_ttl: float | None = None,
        if_match: str | None = None,
    ) -> Channel:
        """Creates a channel, or replaces its settings with exactly these; `message_ttl` is in seconds.

        `if_match` is an `etag` that was read before: if the channel has another one now, this raises
        `PreconditionFailed`. The same holds for the methods below.
        """
        return await self._call(calls.put(name, retention, message_ttl, if_match))

    async def update(
        self,
        name: str,
        *,
        retention: Retention | Unset | None = UNSET,
        message_ttl: float | Unset | None = UNSET,
        if_match: str | None = None,
    ) -> Channel:
        """Changes the given settings; None removes a setting. Raises `NotFound`."""
        return await self._call(calls.update(name, retention, message_ttl, if_match))

    async def delete(self, name: str, *, if_match: str | None = None) -> None:
        """Removes a channel and all its messages. Raises `NotFound`."""
        await self._call(calls.delete(name, if_match))
