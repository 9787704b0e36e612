"""The readiness gate: what settles messages by itself waits until the definitions are known to be loaded.

Another service may share the database, with namespaces and definitions of its own: what time does in those is
left to it, for only it can tell when their definitions are there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from subscriptions.domain.errors import unavailable


class Gate:
    """Closed until `open`; never closed again: what it waited for stays true, for it lies in the database."""

    def __init__(self) -> None:
        self._opened = asyncio.Event()
        self.namespaces: frozenset[str] = frozenset()
        """Those whose definitions this process has loaded."""

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    def open(self, namespaces: Iterable[str]) -> None:
        """For these, and for those it was opened for before."""
        self.namespaces |= frozenset(namespaces)
        self._opened.set()

    async def passed(self) -> None:
        """Wait until it is open."""
        await self._opened.wait()

    def require(self) -> None:
        """Raises GaplessError `unavailable` while it is closed."""
        if not self._opened.is_set():
            raise unavailable("the definitions are not loaded yet; nothing was done")
