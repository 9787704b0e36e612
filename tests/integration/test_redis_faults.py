"""What a whole service does while Redis is not well: publishing goes on, workers live, others hear by the
sweep, and once Redis is well hints are heard again."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest

from tests.conftest import Serve
from tests.contract.hostile_redis import BEHAVIOURS, HostileRedis
from tests.integration.test_faults import workers
from tests.patience import eventually, http_client
from tests.sse import publish, subscribe
from tests.support import RunningService

CHOSEN = [
    "accepts and resets",
    "resets when asked",
    "never answers",
    "never reads",
    "half a line",
    "a web server",
    "numbers",
    "an array of a billion",
    "takes all, passes nothing on",
    *(name for name in BEHAVIOURS if name.startswith("says")),
]


@pytest.fixture
async def server(redis_url: str) -> AsyncIterator[HostileRedis]:
    made = HostileRedis(redis_url)
    await made.start()
    yield made
    await made.stop()


async def hints_heard(service: RunningService) -> float:
    async with http_client(service.url) as client:
        text = (await client.get("/metrics")).text
    found = re.search(r"^gapless_hints_heard_total (\S+)$", text, re.M)
    assert found is not None
    return float(found[1])


@pytest.mark.drill
async def test_no_failure_of_redis_ends_or_blinds_a_worker(serve: Serve, server: HostileRedis) -> None:
    hosts = [serve(GAPLESS_REDIS_URL=server.url) for _ in range(2)]
    before = [workers(host) for host in hosts]
    async with subscribe(hosts[1].url, "a") as one, subscribe(hosts[1].url, "a", "b") as many:
        for stream in (one, many):
            await stream.until("ready")
        for number, name in enumerate(CHOSEN):
            await server.turn(BEHAVIOURS[name].play(server))
            await publish(hosts[0].url, "a", number)
            for stream in (one, many):
                assert [m["data"] for m in await stream.messages(1)] == [number]
            await eventually(lambda: server.met >= 4)
            assert [workers(host) for host in hosts] == before, name
        heard = await hints_heard(hosts[1])
        await server.turn(None)

        async def hears_again() -> bool:
            await publish(hosts[0].url, "a", "again")
            return await hints_heard(hosts[1]) > heard

        await eventually(hears_again)
    assert [workers(host) for host in hosts] == before
