"""The watermark: the id at or below which nothing can appear any more, in any channel.

A publishing transaction holds the publishing lock from before it takes an id until it has committed. A tick
reads the last id taken, and right after it the holders of the lock. Once all these holders are gone, that id
is settled. It must also be on disk: a transaction that rolled back does not flush the sequence values it
took, so after a crash they would be given out again, below a cursor that a reader already holds. (Technique:
observed holders, as in epoch-based reclamation. Transactions that publish nothing hold no lock, and the
watermark never waits for them.)
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

MAX_CANDIDATES = 64
MAX_EPOCHS = 1000
PREPARED = "-1/"
"""How the names of prepared transactions begin (`pg_locks.virtualtransaction`)."""


class Fence(NamedTuple):
    """Where a history of the log begins or goes on. Histories that do not know of each other give out the
    same numbers, and a crash keeps the epoch: only all three together name one fence. Messages that come
    after it have ids from `base` on."""

    number: int
    epoch: str
    base: int


BEGUN = Fence(0, "", 0)


@dataclass(frozen=True, slots=True)
class Tick:
    """One reading of the database. Its parts are read in this order: the last id taken; how far the WAL
    reached then and how far it is flushed, in bytes; the holders of the publishing lock. After a crash since
    the last tick, `flushed` is no more than what the crash left. `life` changes whenever the server starts,
    and differs on each copy of it. `fence` is the newest fence; its epoch changes when the log's history
    does: the primary is another one, or was restored to an earlier moment. `newest` is the newest id that a
    message had at a fence since the last tick. `shared` is the number of the newest fence that the history
    followed so far has too (-1: none); None: no history was followed.
    """

    last_id: int
    lsn: int
    flushed: int
    holders: frozenset[str]
    life: str = ""
    fence: Fence = BEGUN
    newest: int = 0
    shared: int | None = None


@dataclass(slots=True)
class _Candidate:
    last_id: int
    lsn: int
    holders: frozenset[str]


class Watermark:
    """Turns successive ticks into a settled id that never falls within one history of the log.

    It holds at most `MAX_CANDIDATES` unsettled readings. It ignores further ones, which only causes delay.
    """

    __slots__ = (
        "_candidates",
        "_committed",
        "_epochs",
        "_fence",
        "_flushed",
        "_life",
        "last_id",
        "regressions",
        "settled",
    )

    def __init__(self) -> None:
        self.settled = 0
        self.last_id = 0
        self.regressions = 0
        """Ticks whose last id was below that of an earlier tick in one life of the server. Must stay 0."""
        self._candidates: list[_Candidate] = []
        self._life = ""
        self._fence = BEGUN
        self._epochs: OrderedDict[str, None] = OrderedDict()
        """Epochs of the histories that were followed before."""
        self._flushed = 0
        self._committed = 0

    @property
    def pending(self) -> bool:
        """Whether ids were taken that are not settled yet."""
        return bool(self._candidates)

    @property
    def seen(self) -> int:
        """The largest id known here that was taken or given to a message."""
        return max(self.last_id, self._committed)

    def was_taken_back(self, tick: Tick) -> bool:
        """Whether the database reports a history that was followed before, but holds less of it, or was left
        for another one: it was restored to an earlier moment, or the disk lost data that it had confirmed."""
        if tick.fence.epoch in self._epochs:
            return True
        if tick.fence.epoch != self._fence.epoch:
            return False
        if tick.shared is not None and tick.shared < self._fence.number:
            return True
        after_a_crash = tick.fence.number > self._fence.number and tick.newest < self._committed
        return after_a_crash or tick.last_id < self.settled or tick.flushed < self._flushed

    def saw(self, message_id: int) -> None:
        """A message with this id was committed."""
        self._committed = max(self._committed, message_id)

    def observe(self, tick: Tick) -> int:
        """The settled id after this tick. `was_taken_back` must be false for the tick."""
        if tick.fence.epoch != self._fence.epoch:
            self._begin(tick.fence)
        self._fence = tick.fence
        self._flushed = max(self._flushed, tick.flushed)
        if tick.life != self._life:
            # Ids that were taken before a crash and not committed are void: no transaction holds them.
            self._life = tick.life
            self._candidates.clear()
            self.last_id = self.settled
        if tick.last_id < self.last_id:
            # One of the two ticks was wrong. Do not wait for ids that this tick says were never taken.
            self.regressions += 1
            self._candidates = [c for c in self._candidates if c.last_id <= tick.last_id]
        self.last_id = max(self.last_id, tick.last_id)
        newest = self._candidates[-1].last_id if self._candidates else self.settled
        if tick.last_id > newest and len(self._candidates) < MAX_CANDIDATES:
            self._candidates.append(_Candidate(tick.last_id, tick.lsn, tick.holders))
        waiting: list[_Candidate] = []
        # A prepared transaction goes on under another name: while there is one, no holder counts as gone.
        prepared = any(holder.startswith(PREPARED) for holder in tick.holders)
        for candidate in self._candidates:
            if not prepared:
                candidate.holders &= tick.holders
            if not candidate.holders and candidate.lsn <= tick.flushed:
                self.settled = max(self.settled, candidate.last_id)
            else:
                waiting.append(candidate)
        self._candidates = [c for c in waiting if c.last_id > self.settled]
        return self.settled

    def _begin(self, fence: Fence) -> None:
        """Another history: its ids may be lower. Nobody held an id when the fence was put up, and it is on
        disk, so all below its base is settled."""
        if self._fence.epoch:
            self._epochs[self._fence.epoch] = None
            if len(self._epochs) > MAX_EPOCHS:
                self._epochs.popitem(last=False)
        self._candidates.clear()
        self.settled = self.last_id = max(0, fence.base - 1)
        self._flushed = self._committed = 0

    def __repr__(self) -> str:
        return f"Watermark(settled={self.settled}, last_id={self.last_id}, waiting={len(self._candidates)})"
