"""Reads the books in the embedded database itself once a second: one snapshot, so nothing is tolerated."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from load.groups.history import Reading
from load.server import Server

QUERY = (Path(__file__).parent / "books.sql").read_text()
EVERY_S = 1.0
TIMEOUT_S = 5.0
AWAY = (
    OSError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    IndexError,
    ValueError,
)
"""What the driver may raise when the database goes away under it, and a pid file that is half written."""


@dataclass(slots=True)
class Books:
    """All readings so far."""

    server: Server
    readings: list[Reading] = field(default_factory=list)

    async def run(self) -> None:
        """Read on and on; a database that is away is asked again a second later."""
        connection: asyncpg.Connection | None = None
        while True:
            try:
                connection = connection or await connect(self.server)
                rows = await connection.fetch(QUERY, timeout=TIMEOUT_S)
                self.readings += [_reading(row) for row in rows]
            except AWAY:
                if connection is not None:
                    connection.terminate()
                connection = None
            await asyncio.sleep(EVERY_S)


async def connect(server: Server) -> asyncpg.Connection:
    """A connection of the owner to the embedded Postgres. Raises OSError and more while it is away."""
    host, port = server.postgres_address()
    connection: asyncpg.Connection = await asyncpg.connect(
        host=host, port=port, user="gapless_owner", database="gapless", timeout=TIMEOUT_S
    )
    return connection


def _reading(row: asyncpg.Record) -> Reading:
    # Dead letters are counted where they lie: one that is not in the list is nowhere.
    return Reading(
        row["name"], time.monotonic_ns(), row["published"], row["published"], row["ready"], row["in_flight"],
        row["acked"], row["dead_letters"], row["removed"], "database",
    )  # fmt: skip
