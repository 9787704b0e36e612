"""A request for deliveries that is answered once."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from subscriptions.domain.delivery import Delivery, Loss, Subscription
from subscriptions.domain.errors import GaplessError


class Pulled(NamedTuple):
    """The answer to a pull. `losses`: new losses, messages that retention removed before they were
    settled."""

    subscription: Subscription
    deliveries: list[Delivery]
    losses: list[Loss]


class Pull:
    """A request for up to `limit` deliveries, answered with the first that come, or with none at `until`."""

    __slots__ = ("_answer", "last_id", "limit", "losses", "until")

    def __init__(self, limit: int, until: float) -> None:
        self.limit = limit
        self.until = until
        self.last_id: int | None = None
        """All messages that were committed before it came have ids up to this one."""
        self.losses: list[Loss] = []
        """Losses that its answer reports."""
        self._answer: asyncio.Future[list[Delivery]] = asyncio.get_running_loop().create_future()

    @property
    def room(self) -> int:
        return 0 if self._answer.done() else self.limit

    async def answer(self) -> list[Delivery]:
        """The deliveries. Raises the GaplessError of a claim that failed."""
        return await self._answer

    def resolve(self, deliveries: list[Delivery]) -> bool:
        """Answer with these deliveries; returns whether the pull still waited."""
        if self._answer.done():
            return False
        self._answer.set_result(deliveries)
        return True

    def fail(self, error: GaplessError) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)

    def taken_back(self) -> list[Delivery]:
        """Deliveries that were dealt to a caller that left before taking them."""
        if self._answer.done() and not self._answer.cancelled() and self._answer.exception() is None:
            return self._answer.result()
        return []
