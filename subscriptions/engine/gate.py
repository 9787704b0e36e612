"""The readiness gate: loops that settle messages by themselves wait at it until the definitions are loaded.

Another service may share the database, with namespaces and definitions of its own. This service does not
reap or expire anything in those namespaces: only the other service knows when their definitions are loaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from subscriptions.domain.errors import unavailable


class Gate:
    """Closed until `open` is called, then open for good: loaded definitions stay in the database."""

    def __init__(self) -> None:
        self._opened = asyncio.Event()
        self.namespaces: frozenset[str] = frozenset()
        """The namespaces whose definitions this process has loaded."""

    def __repr__(self) -> str:
        return f"Gate({'open for ' + ', '.join(sorted(self.namespaces)) if self.is_open else 'closed'})"

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    def open(self, namespaces: Iterable[str]) -> None:
        """Open the gate for these namespaces, in addition to earlier ones."""
        self.namespaces |= frozenset(namespaces)
        self._opened.set()

    async def passed(self) -> None:
        """Wait until it is open."""
        await self._opened.wait()

    def require(self) -> None:
        """Raises GaplessError `unavailable` while it is closed."""
        if not self._opened.is_set():
            raise unavailable("the definitions are not loaded yet; nothing was done")
