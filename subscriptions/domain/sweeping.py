"""Decides when a process compares what the database has with what its readers were given. It never waits."""

from __future__ import annotations

from typing import Final

SWEEP_S: Final = 1.0
"""So often a process looks at the database even without a hint: a lost hint delays a message by a second."""


class SweepSchedule:
    """A sweep is due every second, and sooner if the settled id is above all hinted ids for two rounds."""

    __slots__ = ("_settled", "_sweep_at", "_swept", "hinted")

    def __init__(self) -> None:
        self.hinted = 0
        """The largest id in any hint so far."""
        self._swept = 0
        self._settled = 0
        self._sweep_at = float("-inf")

    def __repr__(self) -> str:
        return f"SweepSchedule(hinted {self.hinted}, swept {self._swept}, due at {self._sweep_at:.3f})"

    def hear(self, last_id: int) -> None:
        """A hint with this id came."""
        self.hinted = max(self.hinted, last_id)

    def soon(self) -> None:
        """Make a sweep due now: hints may have been lost."""
        self._sweep_at = float("-inf")

    def due(self, settled: int, now: float) -> bool:
        """Whether to sweep in this round."""
        explained = max(self.hinted, self._swept)
        overtaken = self._settled > explained
        self._settled = settled
        return overtaken or now >= self._sweep_at

    def swept(self, settled: int, now: float) -> None:
        """A sweep that began when this id was settled has ended."""
        self._swept = max(self._swept, settled)
        self._sweep_at = now + SWEEP_S
