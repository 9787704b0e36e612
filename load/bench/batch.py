"""Batches of 1,000 over REST, compared with one bare SQL statement on the same embedded Postgres."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import asyncpg
import msgspec

from load.bench.cost import Cost
from load.drill import say
from load.figure import Figure, UnfitError, versus
from load.server import Server, serving
from load.wire import Connection

SIZE = 1000
WRITERS = (1, 2)
"""So many batches are in flight on both sides; each writer has its own channel.

One shows the cost of a batch. Two show the limit of a machine with two cores, where each session of the bare
statement has a core.
"""

GOAL = 0.6
DATA = msgspec.json.encode(
    {"text": "The quick brown fox jumps over the lazy dog, a thousand at a time."}
).decode()
STATEMENT = (Path(__file__).parent / "bare.sql").read_text()
SCHEMA, INSERT = STATEMENT.split("-- the statement\n")


async def through_rest(server: Server, writers: int, seconds: float, confirmed: Counter[str]) -> float:
    """Confirmed messages per second. They are added to `confirmed`."""
    body = msgspec.json.encode([{"data": msgspec.Raw(DATA.encode())}] * SIZE)

    async def write(number: int) -> int:
        connection = await Connection.open(server.target)
        request = server.target.request("POST", f"/v1/channels/bench.batch.{number}/messages", body)
        batches = 0
        while time.perf_counter() < deadline:
            answer = await connection.ask(request)
            if answer.status != 201:
                raise UnfitError(f"a batch was answered {answer.status} {answer.body[:200]!r}")
            batches += 1
            confirmed["messages"] += SIZE
        connection.close()
        return batches

    started = time.perf_counter()
    deadline = started + seconds
    batches = await asyncio.gather(*(write(number) for number in range(writers)))
    return sum(batches) * SIZE / (time.perf_counter() - started)


async def through_sql(sessions: list[asyncpg.Connection], seconds: float, size: int = SIZE) -> float:
    """Committed messages per second, in batches of `size`."""

    async def write(number: int, session: asyncpg.Connection) -> int:
        statement = await session.prepare(INSERT)
        names = [f"bench.batch.{number}"] * size
        types, data = ["message"] * size, [DATA] * size
        batches = 0
        while time.perf_counter() < deadline:
            row = await statement.fetchrow(names, types, [None] * size, data, [None] * size)
            if row is None or len(row["ids"]) != size:
                raise UnfitError("the bare statement did not store a whole batch")
            batches += 1
        return batches

    started = time.perf_counter()
    deadline = started + seconds
    batches = await asyncio.gather(*(write(n, s) for n, s in enumerate(sessions)))
    return sum(batches) * size / (time.perf_counter() - started)


async def sessions_of(server: Server) -> list[asyncpg.Connection]:
    """Sessions in the service's own Postgres, as its owner. Makes the tables of the bare statement."""
    sessions = [await server.connect() for _ in range(max(WRITERS))]
    await sessions[0].execute(SCHEMA)
    for number in range(max(WRITERS)):
        await sessions[0].execute("insert into bench.channels (name) values ($1)", f"bench.batch.{number}")
    return sessions


async def run(short: bool) -> list[Figure]:
    """Measure both in turn. Then rows and heads of the service must equal the confirmed messages."""
    seconds, rounds = (1.5, 2) if short else (3.0, 4)
    async with serving() as server:
        sessions = await sessions_of(server)
        confirmed: Counter[str] = Counter()
        await through_rest(server, 1, 1.0, confirmed)
        await through_sql(sessions[:1], 1.0)
        pairs: dict[int, list[tuple[float, float]]] = {writers: [] for writers in WRITERS}
        costs = {writers: Cost(server) for writers in WRITERS}
        for _ in range(rounds):
            for writers in WRITERS:
                before = confirmed["messages"]
                with costs[writers]:
                    mine = await through_rest(server, writers, seconds, confirmed)
                costs[writers].operations += confirmed["messages"] - before
                bare = await through_sql(sessions[:writers], seconds)
                pairs[writers].append((mine, bare))
                say(f"batch, {writers} in flight: {mine:,.0f}/s, bare SQL {bare:,.0f}/s")
        held = await sessions[0].fetchval("select count(*) from gapless.messages")
        heads = await sessions[0].fetchval("select sum(last_seq) from gapless.channels")
        for session in sessions:
            await session.close()
    if not held == heads == confirmed["messages"]:
        raise UnfitError(
            f"{confirmed['messages']} confirmed, {held} rows stored, {heads} counted by the heads"
        )
    checked = f"{held:,} messages confirmed, stored, and counted by the heads"
    return [
        versus(f"batch, {w} in flight", "messages/s", pairs[w], GOAL, checked, cost=costs[w]) for w in WRITERS
    ]
