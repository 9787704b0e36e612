"""Finds the settled id: no message can appear at or below it any more, in any channel.

A publishing transaction holds the publishing lock from before it takes an id until it has committed. A tick
reads the last id taken, then the holders of the lock. That id is settled once all these holders are gone, and
the WAL is flushed up to its position at the tick. Transactions that publish nothing hold no lock, and are not
waited for. (Technique: observed holders, as in epoch-based reclamation. The service uses the same rule.)
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
"""The database ends a publisher after 5 s; twice that allows for a slow machine."""
PAUSE_S = 0.005
MAX_PAUSE_S = 0.1
_TICK = "select last_id, lsn, flushed, holders, life::text as life from gapless.tick()"
_PREPARED = "-1/"
"""The prefix of prepared transactions in `pg_locks.virtualtransaction`."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One reading of the database, in this order: the last id taken, the WAL's position and its flushed
    position (bytes), and the holders of the publishing lock. `life` changes when a crash loses unflushed
    WAL."""

    last_id: int
    lsn: int
    flushed: int
    holders: frozenset[str]
    life: str


class Wait:
    """A wait until the last id of its first tick is settled. `observe` must get every tick."""

    __slots__ = ("_first", "_holders")

    def __init__(self) -> None:
        self._first: Tick | None = None
        self._holders: frozenset[str] = frozenset()

    @property
    def holders(self) -> frozenset[str]:
        return self._holders

    def observe(self, tick: Tick) -> int | None:
        """The last id of the first tick if this tick shows that it is settled, else None."""
        if self._first is None or self._first.life != tick.life:
            # After a crash, ids that were taken but not flushed are taken again, so the wait starts over.
            self._first, self._holders = tick, tick.holders
        # A holder that prepares its transaction changes its name, so a missing holder may not be gone.
        if not any(holder.startswith(_PREPARED) for holder in tick.holders):
            self._holders &= tick.holders
        if not self._holders and self._first.lsn <= tick.flushed:
            return self._first.last_id
        return None


def read_tick(connection: Connection) -> Tick:
    """One tick, in its own transaction. Commits an open transaction on `connection`."""
    commit(connection)
    ((last_id, lsn, flushed, holders, life),) = rows(connection, _TICK)
    commit(connection)
    return Tick(last_id, lsn, flushed, frozenset(holders), life)


def settled(connection: Connection, patience_s: float = PATIENCE_S) -> int:
    """Wait until the last id taken at the time of the call is settled, and return it. This is usually at
    once, else when the publishers at that time have ended.

    Commits an open transaction on `connection`, which must not use an imported snapshot. Raises `Unsettled`
    after `patience_s` seconds (only a prepared transaction or a stopped database takes that long), and the
    errors of `database.rows`.
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
