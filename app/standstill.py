"""How long the settled id has stood still below ids that were taken."""

from __future__ import annotations


class Standstill:
    """Told from time to time where both stand; `now` in seconds of any one clock."""

    def __init__(self) -> None:
        self._settled = -1
        self._since = 0.0

    def seen(self, settled: int, last_id: int, now: float) -> float:
        """For how long it has not moved though it should; 0 where nothing waits to be settled."""
        if settled != self._settled or last_id <= settled:
            self._settled, self._since = settled, now
        return now - self._since
