"""One session that claims and settles with the service's own statements, and nothing around them."""

from __future__ import annotations

import time

import asyncpg

from load.children import CHECKOUT
from load.figure import UnfitError
from load.postgres import blocks

BATCH = 100


def statement(file: str, name: str) -> str:
    """The statement that the service itself uses. Raises KeyError when there is none of that name."""
    return blocks((CHECKOUT / "db" / "sql" / file).read_text())[name]


async def rate(session: asyncpg.Connection, subscription: str, messages: int) -> float:
    """Messages settled a second, from the first claim until the last ack is committed."""
    number = await session.fetchval("select id from gapless.subscriptions where name = $1", subscription)
    settled = await session.fetchval("select coalesce(max(id), 0) from gapless.messages")
    claim = await session.prepare(statement("deliveries.sql", "claim"))
    ack = await session.prepare(statement("deliveries.sql", "ack"))
    done, started = 0, time.perf_counter()
    while done < messages:
        *rows, _ = await claim.fetch(number, settled, BATCH, None, None)
        if not rows:
            raise UnfitError(f"the bare loop got {done} of {messages} messages")
        ids, leases = [row["id"] for row in rows], [row["lease"] for row in rows]
        statuses = await ack.fetchval([number] * len(ids), ids, leases)
        if any(statuses):
            raise UnfitError(f"the bare loop's acks were refused: {statuses}")
        done += len(rows)
    return done / (time.perf_counter() - started)
