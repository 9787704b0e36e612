"""The watermark: the id at or below which nothing can appear any more, in any channel.

A publishing transaction holds the publishing lock from before it takes an id until it has committed. A tick
reads the last id taken, and right after it the holders of the lock. Once all these holders are gone, that id
is settled. It must also be on disk: a transaction that rolled back does not flush the sequence values it
took, so after a crash they would be given out again, below a cursor that a reader already holds. (Technique:
observed holders, as in epoch-based reclamation. Transactions that publish nothing hold no lock, and the
watermark never waits for them.)
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_CANDIDATES = 64
PREPARED = "-1/"
"""How the names of prepared transactions begin (`pg_locks.virtualtransaction`)."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One reading of the database. Its parts are read in this order: the last id taken; how far the WAL
    reached then and how far it is flushed, in bytes; the holders of the publishing lock. `life` changes
    whenever the server starts, and differs on each copy of it. `epoch` changes when the log's history does:
    the primary is another one, or was restored to an earlier moment. `fences` counts such changes and
    crashes; `newest` is the newest id that a message had at the last of them.
    """

    last_id: int
    lsn: int
    flushed: int
    holders: frozenset[str]
    life: str = ""
    fences: int = 0
    epoch: str = ""
    newest: int = 0


@dataclass(slots=True)
class _Candidate:
    last_id: int
    lsn: int
    holders: frozenset[str]


class Watermark:
    """Turns successive ticks of one database into a settled id that never falls within one history. Ids of
    another history may be smaller.

    It holds at most `MAX_CANDIDATES` unsettled readings. It ignores further ones, which only causes delay.
    """

    __slots__ = (
        "_candidates",
        "_committed",
        "_epoch",
        "_fences",
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
        self._epoch = ""
        self._flushed = 0
        self._fences = 0
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
        """Whether the database reports the same history as before, but holds less of it: it was restored to
        an earlier moment, or the disk lost data that it had confirmed."""
        if tick.epoch != self._epoch:
            return False
        after_a_crash = tick.fences > self._fences and tick.newest < self._committed
        return after_a_crash or tick.last_id < self.settled or tick.flushed < self._flushed

    def saw(self, message_id: int) -> None:
        """A message with this id was committed."""
        self._committed = max(self._committed, message_id)

    def observe(self, tick: Tick) -> int:
        """The settled id after this tick. `was_taken_back` must be false for the tick."""
        if tick.epoch != self._epoch:
            self._epoch, self._flushed, self._committed = tick.epoch, 0, 0
            self.settled = min(self.settled, tick.newest)
            self.last_id = self.settled
            self._candidates.clear()
        self._fences = tick.fences
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

    def __repr__(self) -> str:
        return f"Watermark(settled={self.settled}, last_id={self.last_id}, waiting={len(self._candidates)})"
