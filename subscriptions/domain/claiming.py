"""Decides when the members of one subscription in a process claim, and when a pull ends. It never waits.

A claim is due when the group was woken (`woken`), when the settled id has passed the id of the last claim,
and when a moment comes at which something is due. Times are seconds of one monotonic clock; ids are those of
the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from subscriptions.domain.sweeping import SWEEP_S

SETTLE_S: Final = 0.25
"""A pull with no waiting time still waits this long for messages that were committed before it came."""
WATCH_S: Final = 0.01
"""Time between two looks at the watermark, or at a clock that may be ahead of the database's."""


class ClaimSchedule:
    """What one group has heard of, and what it has looked at."""

    __slots__ = ("_claim_at", "_claimed_to", "_comers", "_comers_seen", "_hinted", "_swept_at")

    def __init__(self) -> None:
        self._hinted = 0
        """All messages that hints named, or that were committed before a member came, have ids up to this."""
        self._comers = 0
        self._comers_seen = 0
        self._swept_at = float("-inf")
        self._claim_at = float("-inf")
        """A claim is due then, even without a hint."""
        self._claimed_to = 0
        """The settled id at the last claim."""

    def __repr__(self) -> str:
        return f"ClaimSchedule(claimed to {self._claimed_to} of {self._hinted}, due at {self._claim_at:.3f})"

    # --- what it is told

    def hear(self, last_id: int) -> None:
        """A message was committed."""
        self._hinted = max(self._hinted, last_id)

    def come(self) -> None:
        """A member or pull came, or the channels changed: hints for earlier commits were not heard."""
        self._comers += 1

    @property
    def comers(self) -> int:
        """How many came so far. Read it before looking at the log, and pass it to `seen`."""
        return self._comers

    def seen(self, comers: int, last_id: int) -> None:
        """The log stood at `last_id` after `comers` had come: all that they missed lies at or below it."""
        if comers > self._comers_seen:
            self._comers_seen = comers
            self.hear(last_id)

    # --- sweeping

    def sweep_due(self, now: float) -> bool:
        """Whether to look for changes of which a hint may have been lost."""
        return now - self._swept_at >= SWEEP_S

    def sweep(self, now: float) -> bool:
        """Begin a sweep. True: it looks at everything, as `sweep_whole` was called since the last one."""
        whole, self._swept_at = self._swept_at == float("-inf"), now
        return whole

    def sweep_whole(self) -> None:
        """The next round looks at everything."""
        self._swept_at = float("-inf")

    # --- claiming

    def claim_due(self, settled: int, now: float, *, woken: bool) -> bool:
        """Whether a claim may find something that the last one did not."""
        return woken or settled > self._claimed_to or now >= self._claim_at

    def claimed(self, settled: int, now: float, due_in_s: float | None, *, more: bool) -> None:
        """A claim was made up to the settled id. `due_in_s`: seconds until something is due, None if nothing
        will be; `more`: the claim stopped at a bound of work."""
        self._claimed_to = settled
        if more:
            self.claim_at_once()
        else:
            self._claim_at = now + (SWEEP_S if due_in_s is None else min(SWEEP_S, max(WATCH_S, due_in_s)))

    def claim_at_once(self) -> None:
        """Make the next round claim: the last claim failed, or left something."""
        self._claim_at = float("-inf")

    def pause_s(self, settled: int, now: float, ends: Iterable[float]) -> float:
        """Seconds until the group has to look again. `ends`: when the waiting pulls end."""
        first = min(ends, default=float("inf"))
        pause_s = min(self._claim_at - now, SWEEP_S)
        if settled < self._hinted or first <= now:
            pause_s = min(pause_s, WATCH_S)
        else:
            pause_s = min(pause_s, first - now)
        return max(pause_s, 0.0)


def pull_ends(until: float, last_id: int | None, settled: int, now: float, *, whole: bool) -> bool:
    """Whether a pull for which nothing was found is answered now, with nothing. A claim first looks at all
    messages that were committed before the pull came, up to `last_id`: the watermark may be some milliseconds
    behind. `whole`: the claim did not stop at a bound of work."""
    looked = whole and last_id is not None and settled >= last_id
    return until <= now and (looked or until + SETTLE_S <= now)
