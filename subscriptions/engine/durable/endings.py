"""Ends leases of members and pulls of this process, in the background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from subscriptions.domain.delivery import Receipt, Touched
from subscriptions.domain.errors import GaplessError
from subscriptions.ports import DeliveryPort

log = logging.getLogger(__name__)

ATTEMPTS = 3
RETRY_S = 0.5

Part = tuple[list[Receipt], bool]
"""Receipts of one member, and whether they were delivered."""


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
        self.begin((receipts, False))

    def withdraw(self, receipts: list[Receipt]) -> None:
        """End leases of what was delivered."""
        self.begin((receipts, True))

    async def stop(self) -> None:
        """Return once all have ended, or could not be ended."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _end(self, parts: list[Part]) -> None:
        for receipts, delivered in parts:
            await self._end_part(receipts, delivered)
        self._woken(parts[0][0][0].subscription_id)

    async def _end_part(self, receipts: list[Receipt], delivered: bool) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._touched(await self._port.release(receipts, delivered=delivered))
                return
            except GaplessError as error:
                log.warning("attempt %d to end %d leases failed: %s", attempt, len(receipts), error.detail)
                if attempt < ATTEMPTS:
                    await asyncio.sleep(RETRY_S)
        # After the last attempt, their deadlines end them.
