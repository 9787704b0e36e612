"""The connections of one worker to the database."""

from __future__ import annotations

from db.connect import DECISION_TIMEOUT_S, DatabaseConfig, Pool

PAGE_CONNECTIONS = 4
HISTORY_CONNECTIONS = 4
DELIVERY_CONNECTIONS = 4
DEFINITION_CONNECTIONS = 2


class Pools:
    """One pool for each kind of work, so that none waits for another's connections."""

    def __init__(self, url: str) -> None:
        database = DatabaseConfig(url)
        deciding = DatabaseConfig(url, statement_timeout_s=DECISION_TIMEOUT_S, small_tables=True)
        self.control = Pool(database, application="control", size=2)
        self.ticks = Pool(database, application="ticks", size=1)
        self.pages = Pool(database, application="pages", size=PAGE_CONNECTIONS)
        self.history = Pool(database, application="history", size=HISTORY_CONNECTIONS)
        self.maintenance = Pool(database, application="maintenance", size=1)
        self.deciding = Pool(deciding, application="deliveries", size=DELIVERY_CONNECTIONS)
        self.defining = Pool(database, application="definitions", size=DEFINITION_CONNECTIONS)

    async def close(self) -> None:
        for pool in (
            self.control,
            self.ticks,
            self.pages,
            self.history,
            self.maintenance,
            self.deciding,
            self.defining,
        ):
            await pool.close()
