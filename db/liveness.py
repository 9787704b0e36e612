"""Liveness: a session in the database that lives as long as this process and shows that it is there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import asyncpg

from db.connect import FAILURES, DatabaseConfig, connect
from db.queries import load
from subscriptions.domain.errors import GaplessError

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
RETRY_S = 0.25
STEP_TIMEOUT_S = 5.0


class Liveness:
    """Holds the session. While it lives, the leases of this process's streams last until their deadline.
    Without it, another process gives them back. `entered` is called each time the session is there again."""

    def __init__(self, config: DatabaseConfig, holder: int, entered: Callable[[], None]) -> None:
        self._config = config
        self._holder = holder
        self._entered = entered
        self._blocks = load()
        self.entered = False

    async def run(self) -> None:
        """Hold the session until cancelled."""
        while True:
            try:
                await self._stay()
            except (GaplessError, *FAILURES) as error:
                if self.entered:
                    log.warning("other processes may consider this one dead: %s", type(error).__name__)
                self.entered = False
            await asyncio.sleep(RETRY_S)

    async def _stay(self) -> None:
        connection = await connect(self._config, application="liveness", timeout_s=STEP_TIMEOUT_S)
        try:
            await self._ask(connection, "enter", self._holder)
            self.entered = True
            self._entered()
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                await self._ask(connection, "present")
        finally:
            connection.terminate()

    async def _ask(self, connection: asyncpg.Connection, block: str, *arguments: object) -> None:
        async with asyncio.timeout(STEP_TIMEOUT_S + 1):
            await connection.fetchval(self._blocks[block], *arguments)
