"""Tells the database of which subscriptions this process has members, so that a process that removes unused
subscriptions knows the members of all processes."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from subscriptions.domain.errors import GaplessError
from subscriptions.ports import AttendancePort

log = logging.getLogger(__name__)

RETRY_S = 0.5
WAITS_AFTER_S = 0.05
"""A pull that is answered sooner did not wait, and is not counted as a member."""


class Attendance:
    """Counts members by subscription. A lock for each subscription keeps its calls to the database in
    order."""

    def __init__(self, port: AttendancePort, holder: int) -> None:
        self._port = port
        self._holder = holder
        self._members: Counter[int] = Counter()
        self._registered: set[int] = set()
        self._locks: dict[int, asyncio.Lock] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def enter(self, subscription_id: int) -> bool:
        """Add one member; the database knows of it when this returns. Returns whether the subscription
        exists. If it does not, or if this raises GaplessError, no member is added."""
        self._members[subscription_id] += 1
        try:
            if await self._register(subscription_id):
                return True
        except BaseException:
            self.go(subscription_id)
            raise
        self.go(subscription_id)
        return False

    def come(self, subscription_id: int) -> None:
        """Add one member, and tell the database in the background."""
        self._members[subscription_id] += 1
        if subscription_id not in self._registered:
            self._spawn(self._try(subscription_id))

    def go(self, subscription_id: int) -> None:
        """Remove one member."""
        self._members[subscription_id] -= 1
        if not self._members[subscription_id]:
            del self._members[subscription_id]
            self._spawn(self._leave(subscription_id))

    async def registered(self) -> None:
        """Return once the database was told of all changes so far, or could not be told."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=RETRY_S)

    def register_again(self) -> None:
        """Tell the database of all members again: it is another one, or it took this process for gone."""
        self._registered.clear()
        for subscription_id in self._members:
            self._spawn(self._try(subscription_id))

    async def stop(self) -> None:
        """Stop telling. The database finds the rest out when this process is gone."""
        await self.registered()
        for task in self._tasks:
            task.cancel()

    async def _register(self, subscription_id: int) -> bool:
        async with self._lock(subscription_id):
            if subscription_id not in self._registered:
                if not await self._port.attend(subscription_id, self._holder):
                    return False
                self._registered.add(subscription_id)
            return True

    async def _try(self, subscription_id: int) -> None:
        try:
            await self._register(subscription_id)
        except GaplessError as error:
            log.debug("the members of subscription %d are not registered: %s", subscription_id, error.detail)

    async def _leave(self, subscription_id: int) -> None:
        while True:
            async with self._lock(subscription_id):
                if self._members[subscription_id]:
                    break
                try:
                    # Even if the database may not know of the member: an answer may have been lost.
                    await self._port.leave(subscription_id, self._holder)
                    self._registered.discard(subscription_id)
                    if not self._members[subscription_id]:
                        self._locks.pop(subscription_id, None)
                        return
                    continue
                except GaplessError as error:
                    log.debug("subscription %d stays registered for now: %s", subscription_id, error.detail)
            await asyncio.sleep(RETRY_S)
        # A member came meanwhile.
        await self._try(subscription_id)

    def _lock(self, subscription_id: int) -> asyncio.Lock:
        return self._locks.setdefault(subscription_id, asyncio.Lock())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
