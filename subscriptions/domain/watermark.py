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
    the server lost what it had not flushed."""

    last_id: int
    lsn: int
    flushed: int
    holders: frozenset[str]
    life: str = ""


@dataclass(slots=True)
class _Candidate:
    last_id: int
    lsn: int
    holders: frozenset[str]


class Watermark:
    """Turns successive ticks of one database into a settled id that never falls.

    Holds at most `MAX_CANDIDATES` unsettled readings; further ones are passed over, which can only delay.
    """

    __slots__ = ("_candidates", "_life", "last_id", "settled")

    def __init__(self) -> None:
        self.settled = 0
        self.last_id = 0
        self._candidates: list[_Candidate] = []
        self._life = ""

    @property
    def pending(self) -> bool:
        """Whether ids were taken that are not settled yet."""
        return bool(self._candidates)

    def observe(self, tick: Tick) -> int:
        """The settled id after this tick."""
        if tick.life != self._life:
            # After a crash ids that were taken and not flushed are taken again: nothing read of them holds.
            self._life = tick.life
            self._candidates.clear()
            self.last_id = self.settled
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
