"""Asks where channels stand now, for readers that are being opened. Readers that come together share a query.

A hundred readers a second get their answers at once. Thousands that come back together make a few queries a
second: the more readers came lately, the longer a query waits for others to share it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from subscriptions.engine.single_flight import SingleFlight
from subscriptions.ports import Head

Channel = tuple[str, str]
"""A namespace, and a name in it."""

NOWHERE: Final = Head(0, 0, 0)
LATELY_S: Final = 0.1
PACE_S: Final = 2e-5
MAX_PACE_S: Final = 0.2
"""A query begins `PACE_S` x n² after the one before, at most `MAX_PACE_S`. n is the number of readers that
came in about the last `LATELY_S`. That is 2 ms at a hundred readers a second, 200 ms from a thousand on."""


class HeadLookup:
    """`ask` reads the heads of channels; those of which nothing is known are not in its answer."""

    __slots__ = ("_ask", "_asked_at", "_flight", "_lately", "_wanted")

    def __init__(self, ask: Callable[[Collection[Channel]], Awaitable[dict[Channel, Head]]]) -> None:
        self._ask = ask
        self._asked_at = 0.0
        self._lately = 0.0
        self._wanted: set[Channel] = set()
        self._flight = SingleFlight(self._ask_for_all)

    async def __call__(self, channel: Channel) -> Head:
        """The channel's head, read after this call; `NOWHERE` if nothing is known of it. Raises what `ask`
        raised."""
        now = asyncio.get_running_loop().time()
        self._lately = self._lately * math.exp((self._asked_at - now) / LATELY_S) + 1
        self._asked_at = now
        self._wanted.add(channel)
        return (await self._flight()).get(channel, NOWHERE)

    async def _ask_for_all(self) -> dict[Channel, Head]:
        wanted, self._wanted = self._wanted, set()
        self._flight.pace_s = min(MAX_PACE_S, PACE_S * self._lately**2)
        return await self._ask(wanted)
