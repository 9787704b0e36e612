"""The watermark: the id at or below which nothing can appear any more, in any channel.

A publishing transaction holds the publishing lock from before it takes an id until it has committed. So once
every holder seen right after reading the last id taken is gone, that id is settled. It must also be on disk:
a sequence value taken by a transaction that rolled back is not flushed with a commit, and a crash would hand
it out again, below a cursor somebody already holds. (Technique: observed holders, as in epoch-based
reclamation; transactions that publish nothing hold no lock and are never waited for.)
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_CANDIDATES = 64
PREPARED = "-1/"
"""How the names of prepared transactions begin (`pg_locks.virtualtransaction`)."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One reading of the database, its parts taken in this order: the last id taken; how far the journal
    reached then and how far it is flushed, in bytes; who holds the publishing lock. `life` changes whenever
    the server starts, and is another one on each copy of it. `epoch` changes when the log's history does:
    the primary is another one, or was restored to an earlier moment. `fences` counts such breaks and crashes;
    `newest` is the newest id that a message had at the last of them.
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
    """Turns successive ticks of one database into a settled id that never falls.

    Holds at most `MAX_CANDIDATES` unsettled readings; further ones are passed over, which can only delay.
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
        """Ticks whose last id lay below an earlier one's, in one life of the server. There must be none."""
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
        """The largest id that was taken, or given to a message, as far as is known here."""
        return max(self.last_id, self._committed)

    def was_taken_back(self, tick: Tick) -> bool:
        """Whether the database says that it holds the history observed so far, and holds less of it: an
        earlier moment was restored, or the disk lost what it had promised to keep."""
        if tick.epoch != self._epoch:
            return False
        after_a_crash = tick.fences > self._fences and tick.newest < self._committed
        return after_a_crash or tick.last_id < self.settled or tick.flushed < self._flushed

    def saw(self, message_id: int) -> None:
        """A message with this id was committed."""
        self._committed = max(self._committed, message_id)

    def observe(self, tick: Tick) -> int:
        """The settled id after this tick, which must not be one that `was_taken_back`."""
        if tick.epoch != self._epoch:
            self._epoch, self._flushed, self._committed = tick.epoch, 0, 0
        self._fences = tick.fences
        self._flushed = max(self._flushed, tick.flushed)
        if tick.life != self._life:
            # Ids that were taken before a crash and not committed are void: nobody holds them any more.
            self._life = tick.life
            self._candidates.clear()
            self.last_id = self.settled
        if tick.last_id < self.last_id:
            # One of the two was wrong. Ids that it says nobody has taken are not waited for.
            self.regressions += 1
            self._candidates = [c for c in self._candidates if c.last_id <= tick.last_id]
        self.last_id = max(self.last_id, tick.last_id)
        newest = self._candidates[-1].last_id if self._candidates else self.settled
        if tick.last_id > newest and len(self._candidates) < MAX_CANDIDATES:
            self._candidates.append(_Candidate(tick.last_id, tick.lsn, tick.holders))
        waiting: list[_Candidate] = []
        # A transaction that is prepared goes on under another name: none is taken for gone meanwhile.
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
