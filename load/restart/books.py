"""Reads the state of a namespace twice: from the database and through the API."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import asyncpg
import msgspec

from load.api import Api, RefusedError
from load.postgres import blocks
from load.restart.plan import ENDS, Plan
from load.restart.world import Copy, Count, Letter, World
from load.waiting import PATIENCE_S

PAGE = 1000
WAIT_S = 2 * PATIENCE_S
SQL = blocks((Path(__file__).parent / "books.sql").read_text())


async def read_database(session: asyncpg.Connection, namespace: str, world: World) -> None:
    """Read the database in one snapshot."""
    async with session.transaction(isolation="repeatable_read", readonly=True):
        rows = await session.fetch(SQL["messages"], namespace, list(ENDS))
        world.messages = [Copy(*row) for row in rows]
        world.letters = [Letter(*row) for row in await session.fetch(SQL["letters"], namespace)]
        (counted,) = await session.fetch(SQL["rows"], namespace)
        world.rows = dict(counted.items())


async def read_api(api: Api, plan: Plan, world: World) -> None:
    """Read the API. Of the chain, only the first and the last list of dead letters are read, because those in
    between have journeys of megabytes."""
    for name in plan.names:
        world.counts[name] = await count(api, name)
    for channel in ENDS:
        world.arrived[channel] = await _ids(api, channel)
    for name in ("a", "b", "hop.0", plan.names[-1]):
        world.listed[name] = await _listed(api, name)


async def count(api: Api, name: str) -> Count:
    """The counts in a subscription's stats."""
    stats = (await api.call("GET", f"/v1/subscriptions/{name}", wait_s=WAIT_S))["stats"]
    return Count(stats["dead_lettered"], stats["dead_letters"], stats["lag"], stats["in_flight"])


async def _ids(api: Api, channel: str) -> list[int]:
    """The ids in a channel; empty if it does not exist."""
    path = f"/v1/channels/{channel}/messages"
    try:
        text = await api.raw("GET", path, wait_s=WAIT_S, Accept="application/x-ndjson")
    except RefusedError as error:
        if error.status != 404:
            raise
        return []
    return [msgspec.json.decode(line)["id"] for line in text.splitlines()]


async def _listed(api: Api, name: str) -> int:
    """The number of dead letters in the list; -1 if one is listed twice."""
    seen: set[int] = set()
    cursor = ""
    while True:
        path = f"/v1/dead-letters?subscription={quote(name)}&limit={PAGE}{cursor}"
        page = await api.call("GET", path, wait_s=WAIT_S)
        ids = [letter["id"] for letter in page["dead_letters"]]
        if not seen.isdisjoint(ids):
            return -1
        seen.update(ids)
        if not page["has_more"]:
            return len(seen)
        cursor = f"&cursor={page['cursor']}"
