"""Asks where channels stand now, for readers that are being opened. Readers that come together share a query.

One reader every ten milliseconds gets an answer at once. When thousands come back together, they make about
ten queries a second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Final

from subscriptions.engine.single_flight import SingleFlight
from subscriptions.ports import Head

Channel = tuple[str, str]
"""A namespace, and a name in it."""

NOWHERE: Final = Head(0, 0, 0)
PACE_S: Final = 0.004
MAX_PACE_S: Final = 0.1
"""After a query that served n readers, the next one begins `PACE_S` x n later, but at most `MAX_PACE_S`."""


class HeadLookup:
    """`ask` reads the heads of channels; those that do not exist are not in its answer."""

    __slots__ = ("_ask", "_askers", "_flight", "_wanted")

    def __init__(self, ask: Callable[[Collection[Channel]], Awaitable[dict[Channel, Head]]]) -> None:
        self._ask = ask
        self._askers = 0
        self._wanted: set[Channel] = set()
        self._flight = SingleFlight(self._ask_for_all)

    async def __call__(self, channel: Channel) -> Head:
        """The channel's head, read after this call; `NOWHERE` if the channel does not exist. Raises what
        `ask` raised."""
        self._askers += 1
        self._wanted.add(channel)
        return (await self._flight()).get(channel, NOWHERE)

    async def _ask_for_all(self) -> dict[Channel, Head]:
        wanted, self._wanted = self._wanted, set()
        self._flight.pace_s = min(MAX_PACE_S, self._askers * PACE_S)
        self._askers = 0
        return await self._ask(wanted)
