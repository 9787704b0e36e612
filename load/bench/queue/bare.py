"""One session that claims and settles with the service's own statements, and nothing around them."""

from __future__ import annotations

import time

import asyncpg

from load.figure import UnfitError

BATCH = 100
CLAIM = "select c.*, case when c.kind = 0 then c.note end as change from gapless.claim($1, $2, $3, $4, $5) c"
ACK = "select * from gapless.ack($1, $2, $3)"
"""As the service itself says them; a test compares them."""


async def rate(session: asyncpg.Connection, subscription: str, messages: int) -> float:
    """Messages settled a second, from the first claim until the last ack is committed."""
    number = await session.fetchval("select id from gapless.subscriptions where name = $1", subscription)
    settled = await session.fetchval("select coalesce(max(id), 0) from gapless.messages")
    claim = await session.prepare(CLAIM)
    ack = await session.prepare(ACK)
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
