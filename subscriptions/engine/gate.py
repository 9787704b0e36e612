"""The readiness gate: loops that settle messages by themselves wait at it until the definitions are loaded.

It opens for each namespace by itself. Another service may share the database, with namespaces and
definitions of its own. This service does not reap or expire anything in those namespaces: only the other
service knows when their definitions are loaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from subscriptions.domain.errors import unavailable


class Gate:
    """Closed for a namespace until `open`: loaded definitions stay in the database, so it stays open until
    the namespace is removed."""

    def __init__(self) -> None:
        self._opened = asyncio.Event()
        self.namespaces: frozenset[str] = frozenset()
        """The namespaces whose definitions this process has loaded."""

    def __repr__(self) -> str:
        return f"Gate({'open for ' + ', '.join(sorted(self.namespaces)) if self.namespaces else 'closed'})"

    def open(self, namespaces: Iterable[str]) -> None:
        """Open the gate for these namespaces, in addition to earlier ones."""
        self.namespaces |= frozenset(namespaces)
        self._opened.set()

    def close(self, namespaces: Iterable[str]) -> None:
        """Close the gate for these namespaces, which were removed."""
        self.namespaces -= frozenset(namespaces)

    async def passed(self) -> None:
        """Wait until it is open for a first namespace."""
        await self._opened.wait()

    def require(self, namespace: str) -> None:
        """Raises GaplessError `unavailable` while it is closed for this namespace."""
        if namespace not in self.namespaces:
            raise unavailable("the definitions are not loaded yet; nothing was done")
