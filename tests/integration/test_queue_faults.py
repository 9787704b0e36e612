"""What consumers see when Redis, Postgres or a worker dies."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import httpx
import pytest

from app.embedded import EmbeddedPostgres, EmbeddedRedis
from tests.conftest import Serve
from tests.integration.queueing import Delivery, Host, Queue, attempts, data, deliveries
from tests.integration.test_faults import redis_pid, workers
from tests.patience import eventually

DAY_S = 86_400


@pytest.fixture
async def own_redis(tmp_path: Path) -> AsyncIterator[EmbeddedRedis]:
    server = EmbeddedRedis(tmp_path / "redis")
    server.start()
    yield server
    server.stop()


async def test_without_redis_everything_is_delivered(serve: Serve, own_redis: EmbeddedRedis) -> None:
    """Whatever one host is told, the other finds out by itself."""
    services = [serve(GAPLESS_REDIS_URL=own_redis.url) for _ in range(2)]
    async with Host(services[0].url) as one, Host(services[1].url) as two:
        queue = await one.subscribe("q", ack_wait=DAY_S)
        async with queue.consume(prefetch=2) as stream:
            await two.publish("q", 1)
            first = await deliveries(stream, 1)
            os.kill(redis_pid(own_redis), signal.SIGKILL)
            await two.publish("q", *range(2, 7))
            given = first + await deliveries(stream, 1)
            # Room that acks at the other host make, a delay that runs out, a lane that is free again.
            for number in range(3):
                await queue.at(two).ack(given[number])
                given += await deliveries(stream, 1)
            await queue.at(two).nack(given[3], delay=0)
            again = await deliveries(stream, 1)
        assert (data(again), attempts(again)) == ([4], [2])
        assert sorted(data(await queue.at(two).take(3))) == [4, 5, 6]
        await eventually(lambda: not own_redis.alive())
        own_redis.start()
        await two.publish("q", "again")
        assert data(await queue.take(1)) == ["again"]


@pytest.fixture
async def own_postgres(tmp_path: Path) -> AsyncIterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(tmp_path / "postgres")
    server.start()
    yield server
    server.stop()


async def test_postgres_killed_and_back(serve: Serve, own_postgres: EmbeddedPostgres) -> None:
    urls = {"GAPLESS_DATABASE_URL": own_postgres.service_url, "GAPLESS_MIGRATE_URL": own_postgres.owner_url}
    async with Host(serve(**urls).url) as host:
        queue = await host.subscribe("q", ordering="none", ack_wait=DAY_S, backoff=[0])
        await host.publish("q", *range(6))
        nacked, *held = await queue.take(3)
        await queue.nack(nacked)
        async with queue.consume(prefetch=2) as stream:
            streamed = await deliveries(stream, 2)
            assert (data(streamed), attempts(streamed)) == ([0, 3], [2, 1])
            assert own_postgres.pid is not None
            os.kill(own_postgres.pid, signal.SIGKILL)

            await eventually(lambda: _is_refused(_ack(queue, nacked)))
            assert await _is_refused(host.http.post(f"{queue.path}/pull"))
            await eventually(lambda: not own_postgres.alive())
            own_postgres.start()

            async def accepted() -> bool:
                answer = await host.http.post("/v1/channels/q/messages", json={"data": "back"})
                return answer.status_code == 201

            await eventually(accepted)
            # Leases, attempts and the stream are what they were.
            await eventually(lambda: _settles(queue, nacked))
            assert await queue.ack(*held, streamed[0]) == ["acked"] * 3
            (more,) = await deliveries(stream, 1)
            assert (more["attempt"], more["message"]["data"]) == (1, 4)
        rest = await queue.take(4)
        came = {delivery["message"]["data"]: delivery["attempt"] for delivery in rest}
        assert came == {3: 2, 4: 2, 5: 1, "back": 1}
        assert await queue.ack(*rest) == ["acked"] * 4
        assert (await queue.stats())["acked"] == 7


@pytest.mark.drill
async def test_a_silent_database_is_told_of_soon(serve: Serve, own_postgres: EmbeddedPostgres) -> None:
    urls = {"GAPLESS_DATABASE_URL": own_postgres.service_url, "GAPLESS_MIGRATE_URL": own_postgres.owner_url}
    async with Host(serve(**urls).url) as host:
        assert own_postgres.pid is not None
        frozen = [own_postgres.pid, *children_of(own_postgres.pid)]
        for process in frozen:
            os.kill(process, signal.SIGSTOP)
        try:
            refused = await host.http.get("/readyz")
        finally:
            for process in frozen:
                os.kill(process, signal.SIGCONT)
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        # Not what the database's own limits would say, half a minute later.
        assert refused.json()["detail"] == "the database has not answered for 3 s"
        await eventually(lambda: _is_ready(host))


def children_of(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


async def _is_ready(host: Host) -> bool:
    return (await host.http.get("/readyz")).status_code == 200


async def _ack(queue: Queue, delivery: Delivery) -> httpx.Response:
    return await queue.host.http.post(f"{queue.path}/ack", json={"receipts": [delivery["receipt"]]})


async def _is_refused(asking: Awaitable[httpx.Response]) -> bool:
    answer = await asking
    return answer.status_code == 503 and "retry-after" in answer.headers


async def _settles(queue: Queue, delivery: Delivery) -> bool:
    """Whether the database answers; this lease has ended."""
    return (await _ack(queue, delivery)).status_code == 200


@pytest.mark.drill
async def test_what_a_killed_worker_streamed_comes_to_others_before_its_deadline(serve: Serve) -> None:
    """What it gave to somebody who pulled does not: whoever pulled is alive."""
    services = [serve(), serve()]
    async with Host(services[0].url) as one, Host(services[1].url) as two:
        queue = await one.subscribe("q", ack_wait=DAY_S, ordering="none")
        await one.publish("q", 1, 2)
        (pulled,) = await queue.take(1)
        async with queue.consume(prefetch=1) as stream:
            (streamed,) = await deliveries(stream, 1)
            [worker] = workers(services[0])
            os.kill(worker, signal.SIGKILL)
            (again,) = await queue.at(two).come(2)
            assert (data([again]), attempts([again])) == (data([streamed]), [2])
            assert await queue.at(two).ack(streamed) == ["lease_expired"]
            assert await queue.at(two).ack(pulled, again) == ["acked"] * 2
            with pytest.raises(httpx.TransportError):
                await deliveries(stream, 1)
