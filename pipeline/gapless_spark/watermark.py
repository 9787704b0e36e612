"""The settled id: nothing can appear at or below it any more, in any channel.

A publishing transaction holds the publishing lock from before it takes an id until it has committed. So once
every holder seen right after reading the last id taken is gone, and the journal is on disk up to where it
stood then, that id is settled. Transactions that publish nothing hold no lock and are never waited for.
(Technique: observed holders, as in epoch-based reclamation. The service uses the same rule.)
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless_spark.database import commit, rows
from gapless_spark.errors import Unsettled

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection

PATIENCE_S = 10.0
"""The database ends a publisher after 5 s; twice that leaves room for a slow machine."""
PAUSE_S = 0.005
MAX_PAUSE_S = 0.1
_TICK = "select last_id, lsn, flushed, holders, life::text as life from gapless.tick()"
_PREPARED = "-1/"
"""How the names of prepared transactions begin (`pg_locks.virtualtransaction`)."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One reading of the database, its parts taken in this order: the last id taken, how far the journal
    reached then and how far it is flushed (bytes), and who holds the publishing lock. `life` changes whenever
    the server lost what it had not flushed."""

    last_id: int
    lsn: int
    flushed: int
    holders: frozenset[str]
    life: str


class Wait:
    """What the first tick of a wait still waits for. `observe` is told every tick, the first one too."""

    __slots__ = ("_first", "_holders")

    def __init__(self) -> None:
        self._first: Tick | None = None
        self._holders: frozenset[str] = frozenset()

    @property
    def holders(self) -> frozenset[str]:
        return self._holders

    def observe(self, tick: Tick) -> int | None:
        """The settled id, once this tick shows that the first one's last id is settled."""
        if self._first is None or self._first.life != tick.life:
            # After a crash ids that were taken and not flushed are taken again: begin anew.
            self._first, self._holders = tick, tick.holders
        # A transaction that is prepared goes on under another name: none is taken for gone meanwhile.
        if not any(holder.startswith(_PREPARED) for holder in tick.holders):
            self._holders &= tick.holders
        if not self._holders and self._first.lsn <= tick.flushed:
            return self._first.last_id
        return None


def read_tick(connection: Connection) -> Tick:
    """One tick, in a transaction of its own: what is open on `connection` is committed."""
    commit(connection)
    ((last_id, lsn, flushed, holders, life),) = rows(connection, _TICK)
    commit(connection)
    return Tick(last_id, lsn, flushed, frozenset(holders), life)


def settled(connection: Connection, patience_s: float = PATIENCE_S) -> int:
    """The last id taken when this was called, once it is settled: usually at once, else when the publishers
    that were under way have ended.

    Commits what is open on `connection`, which must not hold an imported snapshot. Raises `Unsettled` after
    `patience_s` seconds (only a prepared transaction or a stopped database holds an id that long), and what
    `database.rows` raises.
    """
    wait = Wait()
    deadline = time.monotonic() + patience_s
    pause = PAUSE_S
    while (answer := wait.observe(read_tick(connection))) is None:
        if time.monotonic() >= deadline:
            raise Unsettled(
                f"ids are not settled after {patience_s:g} s: {len(wait.holders) or 'no'} publishing "
                "transactions are still open. Look for prepared transactions (pg_prepared_xacts) that "
                "published, and end them"
            )
        time.sleep(pause)
        pause = min(pause * 1.5, MAX_PAUSE_S)
    return answer
