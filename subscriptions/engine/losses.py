"""What retention took from a subscription before it was settled, told to each stream of deliveries here once.

The database keeps it until some stream was told: another process tells it again where this one dies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from subscriptions.domain.delivery import Loss
from subscriptions.domain.errors import GaplessError
from subscriptions.ports import DeliveryPort

log = logging.getLogger(__name__)

MAX_REMEMBERED = 10_000


class Losses:
    """Of one subscription."""

    def __init__(self, port: DeliveryPort, subscription_id: int) -> None:
        self._port = port
        self._subscription_id = subscription_id
        self._given: dict[int, Loss] = {}
        """By channel, the last that the streams here were given."""
        self._confirmed: set[tuple[int, int]] = set()
        self._task: asyncio.Task[None] | None = None

    def news(self, losses: Sequence[Loss]) -> list[Loss]:
        """What of it the streams here were not given yet."""
        found = []
        for loss in losses:
            before = self._given.get(loss.channel_id)
            if before is not None and before.number >= loss.number:
                continue
            if before is not None and before.number >= loss.since:
                found.append(replace(loss, missed=loss.missed - before.missed))
            else:
                found.append(loss)
            if len(self._given) >= MAX_REMEMBERED:
                self._given.clear()
            self._given[loss.channel_id] = loss
        return found

    def told(self) -> None:
        """Some stream was told all that was given: nobody else has to be."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._confirm())

    async def _confirm(self) -> None:
        while waiting := [
            loss for loss in self._given.values() if (loss.channel_id, loss.number) not in self._confirmed
        ]:
            try:
                await self._port.told(self._subscription_id, waiting)
            except GaplessError as error:
                # Whoever opens a stream next hears it again.
                log.debug("told of a gap, and could not say so: %s", error.detail)
                return
            self._confirmed |= {(loss.channel_id, loss.number) for loss in waiting}
            self._confirmed &= {(loss.channel_id, loss.number) for loss in self._given.values()}
