"""Gathers receipts into few calls: while one call is under way, receipts for the next call gather."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from gapless._calls.delivery import MAX_RECEIPTS

W = TypeVar("W")


class Gatherer(Generic[W]):
    """Receipts of one subscription, each with the caller that waits for its result.

    The first receipt is sent at once and alone. Receipts that come while it is under way are sent together,
    at most as many as one call takes. A caller waits for each, so no more gather than are in hand.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, W]] = deque()
        self._sending = False

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return not (self._waiting or self._sending)

    @property
    def sending(self) -> bool:
        """Whether a call is under way."""
        return self._sending

    def add(self, receipt: str, waiter: W) -> None:
        """Adds a receipt to the next call."""
        self._waiting.append((receipt, waiter))

    def take(self) -> list[tuple[str, W]]:
        """The next call's receipts; none while a call is under way or nothing waits. Then call `sent`."""
        if self._sending or not self._waiting:
            return []
        self._sending = True
        count = min(len(self._waiting), MAX_RECEIPTS)
        return [self._waiting.popleft() for _ in range(count)]

    def sent(self) -> None:
        """The call has ended, with success or not."""
        self._sending = False
