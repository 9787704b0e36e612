"""A backup is restored under a running service, and lacks fences that the log had when it was taken away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest

from load.failover.cluster import Cluster
from tests.conftest import Serve
from tests.integration.frames import Frames
from tests.integration.queueing import Host, data
from tests.patience import eventually
from tests.race.support import CRASH
from tests.sse import Stream, subscribe

KEPT, LOST = 3, 2


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    try:
        await made.start(fenced=True)
        yield made
    finally:
        made.remove()


@pytest.mark.drill
@pytest.mark.parametrize("crashes", [1, 2], ids=["as many", "fewer"])
async def test_every_reader_goes_on_in_a_backup_that_lacks_fences(
    serve: Serve, cluster: Cluster, crashes: int
) -> None:
    urls = {"GAPLESS_DATABASE_URL": cluster.primary.url, "GAPLESS_MIGRATE_URL": cluster.primary.url}
    url = serve(**urls).url
    async with Host(url) as host:
        queue = await host.subscribe("work", "a", ordering="none")
        await host.publish("a", *range(KEPT))
        await queue.ack(*await queue.take(KEPT))
        backup = cluster.home / "backup"
        await asyncio.to_thread(cluster.back_up, backup)
        for _ in range(crashes):
            await cluster.primary.execute(CRASH)
            seen = (await _publish(host, *["lost"] * LOST))[-1]["id"]
        await queue.ack(*await queue.take(crashes * LOST))
        everything = KEPT + crashes * LOST
        client = await Frames.open(url)
        epoch = (await client.ask("subscribe", channel="a"))["subscribe"]["epoch"]
        async with subscribe(url, "a", after=0) as one, subscribe(url, ">", after=0) as several:
            for stream in (one, several):
                assert len(await stream.messages(everything)) == everything
            await asyncio.to_thread(cluster.restore, backup)
            for stream in (one, several):
                assert (await stream.until("goodbye"))[-1].json == {"reason": "history_changed"}
        assert (await client.push("unsubscribe"))["unsubscribe"]["code"] == 2500
        # A crash after that changes nothing for them, but that ids go on above those of the first two.
        fences = await _fences(cluster)
        await cluster.primary.execute(CRASH)
        await eventually(lambda: _fenced(cluster, fences + 1))
        await eventually(lambda: _takes_readers(host))

        async with subscribe(url, "a", after=seen) as one, subscribe(url, ">", after=seen) as several:
            for stream in (one, several):
                await _told_of_loss(stream, seen)
            again = await client.ask("subscribe", channel="a", recover=True, epoch=epoch, offset=everything)
            assert not again["subscribe"]["recovered"]
            assert again["subscribe"]["epoch"] != epoch
            await _publish(host, "after")
            for stream in (one, several):
                assert [m["data"] for m in await stream.messages(1)] == ["after"]
            assert (await client.push())["pub"].items() >= {"offset": KEPT + 1, "data": "after"}.items()
        assert data(await queue.come(1000)) == ["after"]
        log = (await host.ask("GET", "/v1/channels/a/messages"))["messages"]
        assert [(m["seq"], m["data"]) for m in log] == [*enumerate(range(KEPT), 1), (KEPT + 1, "after")]
        await host.ask("GET", "/readyz")
        await client.close()


async def _publish(host: Host, *data: str) -> list[Any]:
    """As a client does it: again under its key until it is stored, as one may be refused at a crash."""
    body, key = [{"data": datum} for datum in data], {"Idempotency-Key": uuid4().hex}

    async def stored() -> Any:
        answer = await host.http.post("/v1/channels/a/messages", json=body, headers=key)
        return answer.json()["messages"] if answer.status_code == 201 else None

    messages: list[Any] = await eventually(stored)
    return messages


async def _fences(cluster: Cluster) -> int:
    session = await cluster.primary.connect()
    try:
        return int(await session.fetchval("select max(number) from gapless.fences"))
    finally:
        await session.close()


async def _fenced(cluster: Cluster, number: int) -> bool:
    return await _fences(cluster) == number


async def _takes_readers(host: Host) -> bool:
    """Whether it follows the newest fence: for a moment it asks readers to come again."""
    async with host.http.stream("GET", "/v1/subscribe", params={"channel": "a"}) as response:
        return response.status_code == 200


async def _told_of_loss(stream: Stream, seen: int) -> None:
    first = await stream.block()
    assert first is not None
    assert (first.event, first.json["reason"]) == ("gap", "history_changed")
    assert first.json["ids"][1] == seen
