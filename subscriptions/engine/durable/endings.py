"""Ends leases of members and pulls of this process, in the background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum

from subscriptions.domain.delivery import Receipt, Touched
from subscriptions.domain.errors import GaplessError
from subscriptions.ports import DeliveryPort

log = logging.getLogger(__name__)

ATTEMPTS = 3
RETRY_S = 0.5


class End(Enum):
    """How leases end."""

    DEPARTED = "departed"
    """Their member is gone, perhaps because of what it held. It was an attempt."""
    WITHDRAWN = "withdrawn"
    """The service ended them for a reason of its own. It was an attempt, too."""
    UNDELIVERED = "undelivered"
    """Nobody got the message, so it was no attempt."""


Part = tuple[list[Receipt], End]
"""Receipts of one member, and how they end."""


class Endings:
    """Leases that are being ended. `woken` is called with each subscription in which some have ended."""

    def __init__(
        self,
        port: DeliveryPort,
        touched: Callable[[tuple[Touched, ...]], None],
        woken: Callable[[int], None],
    ) -> None:
        self._port = port
        self._touched = touched
        self._woken = woken
        self._tasks: dict[asyncio.Task[None], None] = {}

    def __repr__(self) -> str:
        return f"Endings({len(self._tasks)} under way)"

    def begin(self, *parts: Part) -> None:
        """End leases of one subscription, part by part."""
        given = [part for part in parts if part[0]]
        if given:
            task = asyncio.create_task(self._end(given))
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)

    def give_back(self, receipts: list[Receipt]) -> None:
        """End leases of what was never delivered."""
        self.begin((receipts, End.UNDELIVERED))

    def withdraw(self, receipts: list[Receipt]) -> None:
        """End leases of what was delivered, for a reason of the service."""
        self.begin((receipts, End.WITHDRAWN))

    async def stop(self) -> None:
        """Return once all have ended, or could not be ended."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _end(self, parts: list[Part]) -> None:
        for receipts, end in parts:
            await self._end_part(receipts, end)
        self._woken(parts[0][0][0].subscription_id)

    async def _end_part(self, receipts: list[Receipt], end: End) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                if end is End.WITHDRAWN:
                    await self._port.withdraw(receipts)
                else:
                    delivered = end is End.DEPARTED
                    self._touched(await self._port.release(receipts, delivered=delivered))
                return
            except GaplessError as error:
                log.warning("attempt %d to end %d leases failed: %s", attempt, len(receipts), error.detail)
                if attempt < ATTEMPTS:
                    await asyncio.sleep(RETRY_S)
        # After the last attempt, their deadlines end them.
