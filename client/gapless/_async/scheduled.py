"""Scheduled messages on asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gapless._async.calls import AsyncNoun
from gapless._calls import scheduled as calls
from gapless._calls.scheduled import Scheduled
from gapless._models import Published


class AsyncScheduledMessages(AsyncNoun):
    """The messages that are published later: `client.scheduled`. `publish` with a time makes them."""

    def list(self, channel: str | None = None, *, page_size: int = 100) -> AsyncIterator[Scheduled]:
        """The messages that are still to be published, to one channel or to any."""
        return self._slices(calls.listed(channel, page_size))

    async def get(self, scheduled_id: str | int) -> Scheduled:
        """One scheduled message. Raises `NotFound`, also if it was published."""
        return await self._call(calls.get(scheduled_id))

    async def promote(self, scheduled_id: str | int) -> Published:
        """Publishes a scheduled message now. Raises `NotFound`, also if it was published."""
        return await self._call(calls.promote(scheduled_id))

    async def cancel(self, scheduled_id: str | int) -> None:
        """Removes a scheduled message unpublished. Raises `NotFound`, also if it was published."""
        await self._call(calls.cancel(scheduled_id))
