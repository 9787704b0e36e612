"""Dead letters on asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import Unpack

from gapless._async.calls import AsyncNoun
from gapless._calls import dead_letters as calls
from gapless._calls.dead_letters import DeadLetter, DeadLetterOptions, ReplayCounts, Replayed


class AsyncDeadLetters(AsyncNoun):
    """The messages that subscriptions gave up on: `client.dead_letters`."""

    def list(self, *, page_size: int = 100, **which: Unpack[DeadLetterOptions]) -> AsyncIterator[DeadLetter]:
        """The dead letters, oldest first: all of them, or those of one subscription, channel or reason."""
        return self._slices(calls.dead_letters(which, page_size))

    async def get(self, entry_id: int) -> DeadLetter:
        """One dead letter. Raises `NotFound`."""
        return await self._call(calls.dead_letter(entry_id))

    async def replay(self, entry_id: int) -> Replayed:
        """Gives the message back to the subscription that failed it; its attempts count from zero again.

        Of two replays of one entry, one succeeds and the other raises `NotFound`. It also raises `NotFound`
        if the subscription is gone.
        """
        return await self._call(calls.replay(entry_id))

    async def replay_all(
        self,
        *,
        ids: Iterable[int] | None = None,
        count: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        **which: Unpack[DeadLetterOptions],
    ) -> ReplayCounts:
        """Replays all dead letters that match, or up to 1000 by `ids`; without a choice, all there are.

        It replays at most `count`, the oldest first. With a `rate` they become due one after the other, that
        many a second, whether or not a member is there. A `dry_run` only counts.
        """
        return await self._call(calls.replay_all(which, ids, count, rate, dry_run))

    async def delete(self, entry_id: int) -> None:
        """Removes an entry and its copy of the message, for good. Raises `NotFound`."""
        await self._call(calls.delete(entry_id))

    async def purge(self, older_than: float | str | datetime, **which: Unpack[DeadLetterOptions]) -> int:
        """Removes all that match and are older, for good; returns how many. An age is seconds or as `7d`."""
        return await self._call(calls.purge(older_than, which))
