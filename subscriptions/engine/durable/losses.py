"""Losses: messages that retention removed before the subscription settled them. Each stream of deliveries in
this process is told of them once, and so is one pull, unless a stream was told before.

The database keeps a loss until it knows that a member was told: if this process dies before, another one
tells it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from subscriptions.domain.delivery import Loss
from subscriptions.domain.errors import GaplessError
from subscriptions.ports import DeliveryPort

log = logging.getLogger(__name__)

MAX_REMEMBERED = 10_000


class Losses:
    """The losses of one subscription."""

    def __init__(self, port: DeliveryPort, subscription_id: int) -> None:
        self._port = port
        self._subscription_id = subscription_id
        self._given: dict[int, Loss] = {}
        """Channel id → the last loss given here."""
        self.told: dict[int, Loss] = {}
        """Channel id → the last loss that a member was told. The database may not know it yet."""
        self._confirmed: set[tuple[int, int]] = set()
        self._task: asyncio.Task[None] | None = None

    def news(self, losses: Sequence[Loss], told: Mapping[int, Loss] | None = None) -> list[Loss]:
        """The part of these losses that was not given here yet, nor `told` elsewhere."""
        found = []
        for loss in losses:
            known = [each.get(loss.channel_id) for each in (self._given, told or {})]
            before = max(filter(None, known), key=lambda last: last.number, default=None)
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

    def reported(self) -> None:
        """A member was told all given losses: the database need not keep them."""
        self.told = dict(self._given)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._confirm())

    def take_back(self, losses: Sequence[Loss]) -> None:
        """No member was told these: they are news again."""
        for loss in losses:
            self._given.pop(loss.channel_id, None)

    async def _confirm(self) -> None:
        while waiting := [
            loss for loss in self._given.values() if (loss.channel_id, loss.number) not in self._confirmed
        ]:
            try:
                await self._port.reported(self._subscription_id, waiting)
            except GaplessError as error:
                # The next stream that opens gets the gap again.
                log.debug("a reported gap could not be confirmed: %s", error.detail)
                return
            self._confirmed |= {(loss.channel_id, loss.number) for loss in waiting}
            self._confirmed &= {(loss.channel_id, loss.number) for loss in self._given.values()}


class PulledLosses:
    """Losses for pulls. All pulls count as one member, so only one is told. While its answer is on the way no
    other pull is told; if the answer fails, the next one is. None is told what `streams` were told."""

    def __init__(self, port: DeliveryPort, subscription_id: int, streams: Losses) -> None:
        self._losses = Losses(port, subscription_id)
        self._streams = streams
        self._out = False

    def give(self, losses: Sequence[Loss]) -> list[Loss]:
        """The part of these losses to tell a pull now; `reported` or `take_back` has to follow."""
        news = [] if self._out else self._losses.news(losses, self._streams.told)
        self._out = self._out or bool(news)
        return news

    def reported(self) -> None:
        """The pull was told the losses given to it."""
        self._out = False
        self._losses.reported()

    def take_back(self, losses: Sequence[Loss]) -> None:
        """The pull could not be told."""
        self._out = False
        self._losses.take_back(losses)
