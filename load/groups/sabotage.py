"""Controls: errors planted in the service's database. A storm with one of them must fail."""

from __future__ import annotations

import asyncio

import asyncpg

from load.server import AWAY, Server
from load.verdict import Breach

EVERY_S = 0.7

CONTROLS: dict[str, tuple[str, Breach]] = {
    "lease": (
        "update gapless.deliveries set state = 1, at = now() where state = 0 and random() < 0.1",
        Breach.REFUSED,
    ),
    "lose": ("delete from gapless.deliveries where random() < 0.05", Breach.LOST),
    "forget": (
        "update gapless.progress set frontier = greatest(0, frontier - 3) where subscription_id > 0",
        Breach.REDELIVERED,
    ),
    "bury": ("delete from gapless.dead_letters where random() < 0.3", Breach.LEDGER),
    "count": ("update gapless.deliveries set attempts = attempts + 1 where random() < 0.05", Breach.ATTEMPTS),
    "hurry": (
        "update gapless.deliveries set state = 1, at = now() where state = 2 and random() < 0.3",
        Breach.OUT_OF_ORDER,
    ),
    "keep": (
        "update gapless.deliveries set expires_at = null, entered_at = now() + interval '1 hour', "
        "at = now() + interval '4 seconds' where state = 1 and entered_at < now() and attempts > 0",
        Breach.LATE,
    ),
}
"""By name: the statement that is executed repeatedly, and the breach that the checker must report."""


async def sabotage(server: Server, name: str) -> None:
    """Execute a control until cancelled. While the database is down, nothing is done."""
    statement, _ = CONTROLS[name]
    connection: asyncpg.Connection | None = None
    while True:
        await asyncio.sleep(EVERY_S)
        try:
            connection = connection or await server.connect()
            await connection.execute(statement)
        except AWAY:
            if connection is not None:
                connection.terminate()
            connection = None
