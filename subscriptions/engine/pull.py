"""A request for deliveries that is answered once."""

from __future__ import annotations

import asyncio

from subscriptions.domain.delivery import Delivery
from subscriptions.domain.errors import GaplessError


class Pull:
    """A request for up to `limit` deliveries, answered with the first there are, or none at `until`."""

    __slots__ = ("_answer", "last_id", "limit", "until")

    def __init__(self, limit: int, until: float) -> None:
        self.limit = limit
        self.until = until
        self.last_id: int | None = None
        """Whatever was committed before it came lies at or below this id."""
        self._answer: asyncio.Future[list[Delivery]] = asyncio.get_running_loop().create_future()

    @property
    def room(self) -> int:
        return 0 if self._answer.done() else self.limit

    async def answer(self) -> list[Delivery]:
        """Raises the GaplessError that the claim met."""
        return await self._answer

    def resolve(self, deliveries: list[Delivery]) -> bool:
        """Whether somebody still waits for it."""
        if self._answer.done():
            return False
        self._answer.set_result(deliveries)
        return True

    def fail(self, error: GaplessError) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)

    def taken_back(self) -> list[Delivery]:
        """What was dealt to somebody who had left before taking it."""
        if self._answer.done() and not self._answer.cancelled() and self._answer.exception() is None:
            return self._answer.result()
        return []
