"""The difference between the service's clock and this machine's, as leases need it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from email.utils import parsedate_to_datetime

TOLERANCE_SECONDS = 2.0
"""A smaller difference is ignored: `Date` has whole seconds and is older than its answer's arrival."""


class ServerClock:
    """Turns the service's times into seconds from now, even if this machine's clock is wrong.

    Without it, a machine whose clock is half a minute late would extend every lease too late.
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._ahead_seconds = 0.0

    def observe(self, date: str | None) -> None:
        """Compares the `Date` of an answer that just came; None, or an invalid date, changes nothing."""
        try:
            seen = None if date is None else parsedate_to_datetime(date).timestamp()
        except ValueError:
            return
        if seen is not None:
            # The middle of the second that it names.
            ahead = seen + 0.5 - self._wall()
            self._ahead_seconds = ahead if abs(ahead) > TOLERANCE_SECONDS else 0.0

    def seconds_until(self, at: datetime) -> float:
        """The seconds from now to a time by the service's clock; negative if it is past."""
        return at.timestamp() - self._wall() - self._ahead_seconds
