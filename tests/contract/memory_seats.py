"""Who of a claim gets what: what is in doubt goes only where few messages are held."""

from __future__ import annotations

from collections.abc import Sequence

from subscriptions.domain.delivery import Hand
from tests.contract.memory_queues import Queue, Row, State


class Seats:
    """The hands of one claim. What is in doubt is given in the order in which it became due; while no stream
    has a hand small enough for the first, streams are given nothing else."""

    def __init__(self, queue: Queue, hands: Sequence[Hand]) -> None:
        self._queue = queue
        self.hands = list(hands)
        """Those that are free."""
        self._streams_wait = False

    def next(self, due: list[Row]) -> Row | None:
        """Which row is next; it has a seat."""
        doubted = sorted((r for r in due if r.company is not None), key=_when)
        if doubted and self._streams_wait is False:
            if self._seat(doubted[0]) is not None:
                return doubted[0]
            self._streams_wait = True
            self.hands = [hand for hand in self.hands if hand.member == 0]
        others = sorted((r for r in due if r.company is None), key=_when)
        return others[0] if others and self.hands else None

    def take(self, row: Row) -> int:
        """The member that gets it."""
        seat = self._seat(row)
        assert seat is not None
        member, _ = self.hands.pop(seat)
        if row.company is not None and member != 0:
            self.hands = [h for h in self.hands if h.member != member or h.place <= row.company]
        return member

    def _seat(self, row: Row) -> int | None:
        if row.company is None:
            return 0 if self.hands else None
        pulled = [
            r.company
            for r in self._queue.rows.values()
            if r.state is State.LEASED and r.member == 0 and r.company is not None
        ]
        for n, hand in enumerate(self.hands):
            if hand.member != 0 and hand.place <= row.company:
                return n
            if hand.member == 0 and len(pulled) < min([row.company, *pulled]):
                return n
        return None


def _when(row: Row) -> tuple[int, int]:
    return (row.at_us, row.message.id)
