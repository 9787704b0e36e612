"""Reads the counts of every subscription once a second, through the API and in the database."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from load.api import Api, RefusedError, UnreachableError
from load.groups.history import FINAL, Group, Reading
from load.groups.publisher import Publisher
from load.server import AWAY, Server

QUERY = (Path(__file__).parent / "books.sql").read_text()
EVERY_S = 1.0
TIMEOUT_S = 5.0


@dataclass(slots=True)
class Books:
    """All readings of the database so far. Each is one snapshot, so its counts must be exact."""

    server: Server
    readings: list[Reading] = field(default_factory=list)

    async def run(self) -> None:
        """Read repeatedly. While the database is down, it is tried again each second."""
        connection: asyncpg.Connection | None = None
        while True:
            try:
                connection = connection or await self.server.connect()
                rows = await connection.fetch(QUERY, timeout=TIMEOUT_S)
                self.readings += [_reading(row) for row in rows]
            except AWAY:
                if connection is not None:
                    connection.terminate()
                connection = None
            await asyncio.sleep(EVERY_S)


def _reading(row: asyncpg.Record) -> Reading:
    # Dead letters are counted from their list, so that one that is missing there makes the sum wrong.
    return Reading(
        row["name"], time.monotonic_ns(), row["published"], row["published"], row["ready"], row["in_flight"],
        row["acked"], row["dead_letters"], row["removed"], "database",
    )  # fmt: skip


@dataclass(slots=True)
class Ledger:
    """All readings through the API so far; `close` takes the last ones."""

    api: Api
    publisher: Publisher
    groups: list[Group]
    readings: list[Reading] = field(default_factory=list)
    latest: dict[str, Reading] = field(default_factory=dict)

    async def run(self) -> None:
        """Read repeatedly. While the service is down, it is tried again each second."""
        while True:
            for group in self.groups:
                try:
                    await self.read(group)
                except (UnreachableError, RefusedError):
                    self.latest.pop(group.name, None)
            await asyncio.sleep(EVERY_S)

    async def read(self, group: Group, source: str = "stats") -> Reading:
        """Read one subscription. Raises UnreachableError and RefusedError."""
        at_least = self.publisher.at_least(group)
        answer = await self.api.call("GET", f"/v1/subscriptions/{group.name}")
        reading = _of_stats(group, answer["stats"], at_least, self.publisher.at_most(group), source)
        self.readings.append(reading)
        self.latest[group.name] = reading
        return reading

    async def close(self) -> None:
        """Read all subscriptions for the last time."""
        for group in self.groups:
            await self.read(group, FINAL)

    @property
    def left(self) -> dict[str, int]:
        """The unsettled messages in the latest readings; 1 for a subscription that could not be read."""
        readings = {group.name: self.latest.get(group.name) for group in self.groups}
        return {name: 1 if r is None else r.ready + r.in_flight for name, r in readings.items()}


def _of_stats(group: Group, stats: dict[str, Any], at_least: int, at_most: int, source: str) -> Reading:
    return Reading(
        group.name, time.monotonic_ns(), at_least, at_most, ready=stats["lag"], in_flight=stats["in_flight"],
        acked=stats["acked"], dead_lettered=stats["dead_lettered"], removed=stats["removed_by_retention"],
        source=source,
    )  # fmt: skip
