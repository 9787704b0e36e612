"""The merge turns history, hot copies and hints, in any order and any number, into one gapless sequence.

Positions are integers on a dense axis: the seq of one channel, or the ids of the whole log (there some
positions are void: a transaction rolled back). The merge hands out a position only after all positions below
it. So the delivered positions always form an interval, and one number describes them, the floor:

    look after the floor → take hot copies while they are contiguous → else read the database from the floor
    → skip what is at or below the floor → hand out in order → raise the floor

A hint says that something was committed. It may be late, doubled, reordered or lost. Three steps repair this:
dedupe (the floor), back-fill (`missing`) and the sweep (`note` with the position that the database reports).
Without any one of the three the sequence breaks; `docs/merge.pml` proves it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_AHEAD = 2048
"""Hot copies kept above the floor. One more, and all are dropped: the database has them."""


class Merge(Generic[T]):
    """One cursor over a dense axis. It uses no clock and no I/O.

    Invariants: `floor` never falls; every item handed out has a position above all earlier ones; all
    committed positions at or below `floor` were handed out. Memory: at most `max_ahead` items.
    """

    __slots__ = ("_ahead", "_max_ahead", "floor", "known")

    def __init__(self, floor: int, max_ahead: int = MAX_AHEAD) -> None:
        self.floor = floor
        self.known = floor
        self._ahead: dict[int, T] = {}
        self._max_ahead = max_ahead

    def __repr__(self) -> str:
        return f"Merge(floor={self.floor}, known={self.known}, ahead={len(self._ahead)})"

    @property
    def behind(self) -> bool:
        """Whether a position is known to exist that was not handed out."""
        return self.known > self.floor

    def delivered(self, position: int) -> bool:
        """Whether this position was handed out (or is void)."""
        return position <= self.floor

    def note(self, position: int) -> None:
        """Learn that positions up to this one exist: from a hint without copies, or from the sweep."""
        self.known = max(self.known, position)

    def offer(self, position: int, item: T) -> None:
        """Take a hot copy. A delivered position is skipped; beyond the bound all copies are dropped."""
        self.note(position)
        if self.delivered(position):
            return
        if len(self._ahead) >= self._max_ahead:
            self._ahead.clear()
        self._ahead[position] = item

    def take(self) -> list[T]:
        """Hand out the copies that follow the floor without a hole."""
        out: list[T] = []
        ahead = self._ahead
        position = self.floor + 1
        while position in ahead:
            out.append(ahead.pop(position))
            position += 1
        self.floor = position - 1
        return out

    def missing(self, readable_to: int | None = None) -> int | None:
        """The position after which the database must be read, or None when reading would find nothing.

        `readable_to`: the watermark, on an axis where a hole may still be filled by a running commit.
        """
        target = self.known if readable_to is None else readable_to
        return self.floor if target > self.floor else None

    def fill(self, items: Iterable[tuple[int, T]], complete_to: int) -> list[T]:
        """Take all that the database holds between the floor and `complete_to`, and hand it out.

        A position up to `complete_to` that is neither in `items` nor among the hot copies is void.
        """
        found = {position: item for position, item in items if not self.delivered(position)}
        for position in [p for p in self._ahead if p <= complete_to]:
            found.setdefault(position, self._ahead.pop(position))
        out = [found[position] for position in sorted(found)]
        self.floor = max(self.floor, complete_to)
        self.known = max(self.known, self.floor)
        return out + self.take()
