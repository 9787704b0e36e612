"""Limits the deliveries that are posted at the same time, in a process and to one host.

A host that does not answer keeps each of its places until the timeout. So a host begins with three places,
gets more as it answers, and has one if it does not. All hosts that have not answered lately share at most
half of the places.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

MAX_CONNECTIONS: Final = 100
MAX_CONNECTIONS_A_HOST: Final = 10
FIRST_PLACES: Final = 3
MAX_STRANGERS: Final = MAX_CONNECTIONS // 2
MAX_REMEMBERED: Final = 1000
"""How many hosts without a delivery under way are remembered: the most recent ones."""


@dataclass(slots=True)
class _Host:
    """A host with `allowed` places at a time. `proven`: its last delivery got an answer."""

    allowed: int = FIRST_PLACES
    proven: bool = False
    in_use: int = 0
    waiting: deque[asyncio.Future[bool]] = field(default_factory=deque)


class Limiter:
    """The places of a process, used on one loop. Only `at` waits."""

    def __init__(self) -> None:
        self._hosts: OrderedDict[str, _Host] = OrderedDict()
        self._in_use = 0
        self._strangers = 0

    def __repr__(self) -> str:
        return f"Limiter({self._in_use} in use, {self._strangers} by strangers, {len(self._hosts)} hosts)"

    @asynccontextmanager
    async def at(self, host: str) -> AsyncIterator[None]:
        """Holds a place while the block runs. Hosts take turns, and callers take turns at one host."""
        is_stranger = await self._take(host)
        try:
            yield
        finally:
            self._give_back(host, is_stranger)

    def answered(self, host: str) -> None:
        """The host answered: it may have twice as many places."""
        there = self._of(host)
        there.proven, there.allowed = True, min(MAX_CONNECTIONS_A_HOST, there.allowed * 2)
        self._admit()

    def silent(self, host: str) -> None:
        """The host did not answer."""
        there = self._of(host)
        there.proven, there.allowed = False, 1

    async def _take(self, host: str) -> bool:
        granted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        there = self._of(host)
        there.waiting.append(granted)
        self._admit()
        try:
            return await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._give_back(host, granted.result())
            elif granted in there.waiting:
                # Else a place that got free meanwhile has passed it over already.
                there.waiting.remove(granted)
            raise

    def _give_back(self, host: str, is_stranger: bool) -> None:
        self._hosts[host].in_use -= 1
        self._in_use -= 1
        self._strangers -= is_stranger
        self._forget()
        self._admit()

    def _admit(self) -> None:
        """Gives out free places, one per host in turn."""
        progress = True
        while progress and self._in_use < MAX_CONNECTIONS:
            progress = False
            for host, there in list(self._hosts.items()):
                if self._may_have(there):
                    self._grant(there)
                    self._hosts.move_to_end(host)
                    progress = True

    def _may_have(self, there: _Host) -> bool:
        while there.waiting and there.waiting[0].done():
            there.waiting.popleft()
        if not there.waiting or there.in_use >= there.allowed or self._in_use >= MAX_CONNECTIONS:
            return False
        return there.proven or self._strangers < MAX_STRANGERS

    def _grant(self, there: _Host) -> None:
        is_stranger = not there.proven
        there.in_use += 1
        self._in_use += 1
        self._strangers += is_stranger
        there.waiting.popleft().set_result(is_stranger)

    def _of(self, host: str) -> _Host:
        return self._hosts.setdefault(host, _Host())

    def _forget(self) -> None:
        excess = len(self._hosts) - MAX_REMEMBERED
        if excess > 0:
            idle = [host for host, there in self._hosts.items() if not there.in_use and not there.waiting]
            for host in idle[:excess]:
                del self._hosts[host]
