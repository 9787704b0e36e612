"""What became of deliveries, counted and now and then said on stderr."""

from __future__ import annotations

import sys
import threading
import time

from app.cli.failures import say

EVERY_S = 5.0
"""Seconds between lines where there is no terminal."""
LIVE_S = 0.2
CLEAR = "\r\x1b[K"


class Tally:
    """A line that moves where somebody can see it move, one now and then elsewhere. Threads may share it."""

    def __init__(self) -> None:
        # Where messages are printed on the terminal they are progress enough.
        self._live = sys.stderr.isatty() and not sys.stdout.isatty()
        self._guard = threading.Lock()
        self._counts = {"acked": 0, "nacked": 0, "lost": 0, "looked at": 0}
        self._told_at = time.monotonic()

    @property
    def total(self) -> int:
        """How many in all."""
        return sum(self._counts.values())

    def count(self, what: str) -> None:
        """One more that was `acked`, `nacked`, `lost` or `looked at`."""
        with self._guard:
            self._counts[what] += 1
            now = time.monotonic()
            if now - self._told_at >= (LIVE_S if self._live else EVERY_S):
                self._told_at = now
                if self._live:
                    print(f"{CLEAR}{self}", end="", file=sys.stderr, flush=True)
                else:
                    say(str(self))

    def end(self) -> None:
        """The last line."""
        if self._live:
            print(CLEAR, end="", file=sys.stderr, flush=True)
        say(str(self))

    def __str__(self) -> str:
        told = [f"{count:,} {what}" for what, count in self._counts.items() if count]
        return ", ".join(told) or "nothing was there"
