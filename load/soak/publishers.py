"""Publishers at full speed: batches over REST, and transactions in SQL."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle

import msgspec

from load.server import Server
from load.wire import Connection

CHANNELS = tuple(f"soak.{face}.{name}" for face in ("rest", "sql") for name in ("a", "b", "c"))
REST, SQL = CHANNELS[:3], CHANNELS[3:]
BATCH = 1000
TRANSACTIONS = (1, 7, 40, 1, 200, 3)
"""The numbers of messages of SQL transactions, in turn: small ones share the ids that the sequence logs
ahead."""
VOIDS = (1, 33, 5, 64)
"""The numbers of ids that rolled-back transactions take, in turn."""
VOID_PAUSE_S = 0.005
KEYS = 100
PAUSE_S = 0.01
PUBLISH = """
select count(gapless.publish(c.names[1 + n % cardinality(c.names)], to_jsonb(n), key => 'k' || n % $3))
from generate_series(1, $2::int) n, (select $1::text[] as names) c
"""

TAKE = """
begin;
lock table gapless.publishing_lock in row share mode;
select count(nextval('gapless.message_id')) from generate_series(1, {size});
rollback
"""
"""Takes ids and rolls back, as a publish does that fails at its end: these ids are void."""


@dataclass(slots=True)
class Publishers:
    """The publishers of a run. `slowest` returns how many messages the slowest reader has; publishers are at
    most `ahead` messages before it."""

    server: Server
    slowest: Callable[[], int]
    ahead: int
    confirmed: Counter[str] = field(default_factory=Counter)
    stopping: bool = False

    @property
    def published(self) -> int:
        """Messages confirmed so far."""
        return self.confirmed.total()

    def stop(self) -> None:
        """Stop, after the requests under way."""
        self.stopping = True

    async def rest(self) -> None:
        """Batches over several channels, each sent as soon as the one before is answered."""
        batch = [{"channel": REST[n % len(REST)], "data": n, "key": f"k{n % KEYS}"} for n in range(BATCH)]
        request = self.server.target.request("POST", "/v1/messages", msgspec.json.encode({"messages": batch}))
        counts = Counter(str(message["channel"]) for message in batch)
        connection = await Connection.open(self.server.target)
        while not self.stopping:
            if await self._may():
                if not connection.usable:  # the server closes connections that were idle for long
                    connection = await Connection.open(self.server.target)
                answer = await connection.ask(request)
                if answer.status != 201:
                    raise RuntimeError(f"a batch was answered {answer.status} {answer.body[:200]!r}")
                self.confirmed += counts
        connection.close()

    async def sql(self) -> None:
        """Transactions of a database user, one after the other."""
        session = await self.server.connect()
        counts = {size: Counter(SQL[n % len(SQL)] for n in range(1, size + 1)) for size in TRANSACTIONS}
        sizes = cycle(TRANSACTIONS)
        while not self.stopping:
            if await self._may():
                size = next(sizes)
                await session.execute(PUBLISH, list(SQL), size, KEYS)
                self.confirmed += counts[size]
        await session.close()

    async def void(self) -> None:
        """Transactions that take ids and are rolled back, so that readers need the watermark."""
        session = await self.server.connect()
        sizes = cycle(VOIDS)
        while not self.stopping:
            await session.execute(TAKE.format(size=next(sizes)))
            await asyncio.sleep(VOID_PAUSE_S)
        await session.close()

    async def _may(self) -> bool:
        if self.published - self.slowest() < self.ahead:
            return True
        await asyncio.sleep(PAUSE_S)
        return False
