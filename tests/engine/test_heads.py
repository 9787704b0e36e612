"""Readers that are opened learn where their channel stands: at once, and with few queries when many come."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from subscriptions.engine.live.heads import Channel, HeadLookup
from subscriptions.ports import Head
from tests.sim.loop import run

QUERY_S = 0.001


class Database:
    """Every query takes a millisecond, and finds one more message in each channel that has any."""

    def __init__(self) -> None:
        self.queries: list[set[Channel]] = []

    async def heads(self, channels: Collection[Channel]) -> dict[Channel, Head]:
        self.queries.append(set(channels))
        found = {channel: Head(1, len(self.queries), 1) for channel in channels if channel[1] != "none"}
        await asyncio.sleep(QUERY_S)
        return found


def test_channels_asked_for_together_share_a_query() -> None:
    async def program() -> None:
        database = Database()
        lookup = HeadLookup(database.heads)
        names = [("default", name) for name in ("a", "b", "a", "none")]
        assert [head.last_id for head in await asyncio.gather(*map(lookup, names))] == [1, 1, 1, 0]
        assert database.queries == [set(names)]

    run(program())


def test_an_answer_is_never_older_than_its_question() -> None:
    async def program() -> None:
        database = Database()
        lookup = HeadLookup(database.heads)
        first = asyncio.create_task(lookup(("default", "a")))
        await asyncio.sleep(QUERY_S / 2)
        assert (await lookup(("default", "a"))).last_id == 2
        assert (await first).last_id == 1

    run(program())


def test_a_hundred_a_second_wait_for_nobody() -> None:
    async def program() -> None:
        database = Database()
        lookup = HeadLookup(database.heads)
        clock = asyncio.get_running_loop().time
        for number in range(500):
            began = clock()
            await lookup(("default", f"c{number}"))
            assert clock() - began <= 2 * QUERY_S
            await asyncio.sleep(began + 0.01 - clock())
        assert len(database.queries) == 500

    run(program())


def test_two_thousand_in_a_second_cost_twenty_queries_at_most() -> None:
    async def program() -> None:
        database = Database()
        lookup = HeadLookup(database.heads)
        asked = []
        for number in range(2000):
            asked.append(asyncio.create_task(lookup(("default", f"c{number}"))))
            await asyncio.sleep(0.0005)
        await asyncio.gather(*asked)
        assert len(database.queries) <= 20
        assert set.union(*database.queries) == {("default", f"c{number}") for number in range(2000)}

    run(program())
