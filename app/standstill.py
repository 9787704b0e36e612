"""How long the settled id has stood still below ids that were taken."""

from __future__ import annotations


class Standstill:
    """Measures the standstill from repeated readings of both ids; `now` is in seconds of one clock."""

    def __init__(self) -> None:
        self._settled = -1
        self._since = 0.0

    def seen(self, settled: int, last_id: int, now: float) -> float:
        """How long it has not moved although it should; 0 if no id waits to be settled."""
        if settled != self._settled or last_id <= settled:
            self._settled, self._since = settled, now
        return now - self._since
