"""The engine with one of its healers switched off, for tests that must then fail."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.merge import Merge
from subscriptions.domain.sweeping import SweepSchedule
from subscriptions.domain.watermark import Fence, Tick, Watermark
from subscriptions.engine.entry import Entry
from subscriptions.engine.live.feed import ChannelFeed
from subscriptions.engine.live.tail import Tail
from tests.contract.memory_log import MemoryLog

T = TypeVar("T")
TORN_AHEAD = 32
"""As many values as Postgres logs ahead of a sequence."""
TORN_EVERY = 7


def no_dedupe(patch: pytest.MonkeyPatch) -> None:
    """Whatever arrives again is handed out again: at the merge, and where the run takes it on."""

    def take(self: Merge[T]) -> list[T]:
        out: list[T] = []
        for position in sorted(self._ahead):
            if position <= self.floor + 1:
                out.append(self._ahead.pop(position))
                self.floor = max(self.floor, position)
        return out

    def append(self: Tail, entries: list[Entry], head: int) -> None:
        for entry in entries:
            # A run that numbers what it holds by arrival shows everything to its readers.
            self._ids.append(max(entry.id, self._ids[-1] + 1 if self._ids else self.head + 1))
            self._entries.append(entry)
        self.head = max(self.head, head, *self._ids[-1:])

    patch.setattr(Merge, "delivered", lambda self, position: False)
    patch.setattr(Merge, "take", take)
    patch.setattr(Tail, "append", append)


def no_backfill(patch: pytest.MonkeyPatch) -> None:
    """What hints promised and did not bring is not read."""
    patch.setattr(Merge, "missing", lambda self, readable_to=None: None)


def no_sweep(patch: pytest.MonkeyPatch) -> None:
    """Nobody compares heads: not each second, nor when somebody joins."""
    patch.setattr(SweepSchedule, "due", lambda self, settled, now: False)
    patch.setattr(ChannelFeed, "swept", lambda self, head: 0)


def no_watermark(patch: pytest.MonkeyPatch) -> None:
    """Whatever id was taken counts as settled."""

    def observe(self: Watermark, tick: Tick) -> int:
        self.settled = self.last_id = max(self.settled, tick.last_id)
        return self.settled

    patch.setattr(Watermark, "observe", observe)


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """Where the log's history breaks, ids and seqs are given again, and nobody is told."""
    patch.setattr(MemoryLog, "fenced", False)


def numbers_alone(patch: pytest.MonkeyPatch) -> None:
    """Fences are told apart by their numbers: equal ones count as the same."""
    patch.setattr(Fence, "__eq__", lambda one, other: isinstance(other, Fence) and one[0] == other[0])
    patch.setattr(Fence, "__ne__", lambda one, other: not isinstance(other, Fence) or one[0] != other[0])
    patch.setattr(Fence, "__hash__", lambda fence: hash(fence[0]))


def higher_numbers_only(patch: pytest.MonkeyPatch) -> None:
    """A database with fewer fences than the last one is taken for one that was replaced."""
    exact = MemoryLog.tick

    def refused(self: MemoryLog, followed: Sequence[Fence] = ()) -> Tick:
        if followed and followed[0].number > self.fence.number:
            raise GaplessError(Code.UNAVAILABLE, "this connection leads to a database that was replaced")
        return exact(self, followed)

    patch.setattr(MemoryLog, "tick", refused)


def no_life(patch: pytest.MonkeyPatch) -> None:
    """A crash gives ids again, and goes unnoticed by the watermark."""
    observe = Watermark.observe

    def forgetful(self: Watermark, tick: Tick) -> int:
        return observe(self, Tick(tick.last_id, tick.lsn, tick.flushed, tick.holders))

    patch.setattr(Watermark, "observe", forgetful)
    no_fence(patch)


def plain_read(patch: pytest.MonkeyPatch) -> None:
    """The sequence is read without its lock: now and then the value it logs ahead is seen."""
    exact = MemoryLog.tick
    turns = itertools.count(1)

    def torn(self: MemoryLog, followed: Sequence[Fence] = ()) -> Tick:
        tick = exact(self, followed)
        ahead = (TORN_AHEAD if next(turns) % TORN_EVERY == 0 else 0) * bool(tick.last_id)
        return replace(tick, last_id=tick.last_id + ahead)

    patch.setattr(MemoryLog, "tick", torn)
