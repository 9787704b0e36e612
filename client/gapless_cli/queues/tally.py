"""Counts the results of deliveries and reports them from time to time on stderr."""

from __future__ import annotations

import sys
import threading
import time

from gapless_cli.failures import say

EVERY_S = 5.0
"""Seconds between lines if there is no terminal."""
LIVE_S = 0.2
CLEAR = "\r\x1b[K"


class Tally:
    """A progress line, updated in place on a terminal, else printed at intervals. Threads may share it."""

    def __init__(self) -> None:
        # Messages printed on the terminal show the progress by themselves.
        self._live = sys.stderr.isatty() and not sys.stdout.isatty()
        self._guard = threading.Lock()
        self._counts = {"acked": 0, "nacked": 0, "released": 0, "lost": 0, "looked at": 0}
        self._told_at = time.monotonic()

    @property
    def total(self) -> int:
        """The total count."""
        return sum(self._counts.values())

    def count(self, what: str) -> None:
        """Counts one delivery as `acked`, `nacked`, `released`, `lost` or `looked at`."""
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
        """Prints the last line."""
        if self._live:
            print(CLEAR, end="", file=sys.stderr, flush=True)
        say(str(self))

    def __str__(self) -> str:
        told = [f"{count:,} {what}" for what, count in self._counts.items() if count]
        return ", ".join(told) or "nothing was there"
