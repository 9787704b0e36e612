"""What readers and publishers see when a part dies, stalls or is replaced."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import httpx
import pytest

from app.embedded import EmbeddedPostgres, EmbeddedRedis
from load.relay import connected
from tests.conftest import Database, Serve
from tests.patience import PATIENCE_S, eventually, http_client
from tests.race.support import until_waiting
from tests.sse import Stream, publish, subscribe
from tests.support import RunningService


async def goodbye(stream: Stream) -> str:
    """Why the server ended the stream."""
    last = (await stream.until("goodbye"))[-1]
    assert await stream.block() is None
    return str(last.json["reason"])


async def test_a_graceful_stop_says_goodbye_and_answers(serve: Serve, owner: asyncpg.Connection) -> None:
    service = serve()
    async with subscribe(service.url, "a") as one, subscribe(service.url, ">") as many:
        for stream in (one, many):
            await stream.until("ready")
        publishes = [asyncio.create_task(publish(service.url, "a", i)) for i in range(20)]
        await asyncio.wait(publishes, return_when=asyncio.FIRST_COMPLETED)
        service.process.terminate()
        assert [await goodbye(s) for s in (one, many)] == ["shutdown", "shutdown"]
        # Each was answered, or never taken: none hangs and none is half done.
        outcomes = await asyncio.gather(*publishes, return_exceptions=True)
        assert await asyncio.to_thread(service.process.wait, PATIENCE_S) == 0
    answered = {one["id"] for outcome in outcomes if isinstance(outcome, list) for one in outcome}
    untaken = [outcome for outcome in outcomes if not isinstance(outcome, list)]
    assert all(isinstance(error, httpx.TransportError) for error in untaken), untaken
    stored = await owner.fetch("select id, data from gapless.messages")
    assert answered <= {row["id"] for row in stored}
    assert len({row["data"] for row in stored}) == len(stored), "an answer that was lost is stored once"


async def test_several_workers_and_hosts_are_one_log(serve: Serve) -> None:
    hosts = [serve("--workers", "2"), serve()]
    async with subscribe(hosts[0].url, "a") as one, subscribe(hosts[1].url, "a", "b.>") as many:
        for stream in (one, many):
            await stream.until("ready")
        for number in range(40):
            await publish(hosts[number % 2].url, "a", number)
        assert [m["data"] for m in await one.messages(40)] == list(range(40))
        assert [m["data"] for m in await many.messages(40)] == list(range(40))


@pytest.mark.drill
async def test_a_rolling_restart_loses_nothing(serve: Serve) -> None:
    service = serve("--workers", "2")
    seen: list[int] = []
    cursor: str | None = None
    before = workers(service)

    async def follow() -> None:
        nonlocal cursor
        while len(seen) < 60:
            try:
                headers = {} if cursor is None else {"Last-Event-ID": cursor}
                async with subscribe(service.url, "a", headers=headers, from_="earliest") as stream:
                    while len(seen) < 60 and (block := await stream.block()):
                        cursor = block.id or cursor
                        if not block.event:
                            seen.append(block.json["data"])
            except (httpx.TransportError, AssertionError):
                continue

    following = asyncio.create_task(follow())
    for number in range(60):
        if number == 20:
            service.process.send_signal(signal.SIGHUP)
        await publish(service.url, "a", number)
    await eventually(lambda: not before & workers(service))
    await following
    assert seen == list(range(60))


def workers(service: RunningService) -> set[int]:
    """Process ids of a service's workers."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == service.process.pid and b"app.process.worker" in (folder / "cmdline").read_bytes():
                found.add(int(folder.name))
        except OSError:
            continue
    return found


async def test_a_killed_worker_is_replaced(serve: Serve) -> None:
    service = serve()
    await publish(service.url, "a", 1)
    async with subscribe(service.url, "a", after=0) as stream:
        ready = (await stream.until("ready"))[-1]
        [worker] = workers(service)
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            await stream.block()
    await eventually(lambda: workers(service) - {worker})

    async def published() -> bool:
        """A worker that is not ready yet may refuse it."""
        try:
            answer = await client.post("/v1/channels/a/messages", json={"data": 2})
        except httpx.TransportError:
            return False
        return answer.status_code == 201

    async with http_client(service.url) as client:
        await eventually(published)
    async with subscribe(service.url, "a", headers={"Last-Event-ID": ready.id}) as stream:
        assert [m["data"] for m in await stream.messages(1)] == [2]


@pytest.fixture
async def own_redis(tmp_path: Path) -> AsyncIterator[EmbeddedRedis]:
    server = EmbeddedRedis(tmp_path / "redis")
    server.start()
    yield server
    server.stop()


def redis_pid(server: EmbeddedRedis) -> int:
    """The process of an embedded Redis."""
    assert server.pid is not None
    return server.pid


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGSTOP, id="frozen", marks=pytest.mark.drill),
    ],
)
async def test_without_redis_everything_is_delivered_by_the_sweep(
    serve: Serve, own_redis: EmbeddedRedis, number: signal.Signals
) -> None:
    hosts = [serve(GAPLESS_REDIS_URL=own_redis.url) for _ in range(2)]
    async with subscribe(hosts[1].url, "a") as one, subscribe(hosts[1].url, "a", "b") as many:
        for stream in (one, many):
            await stream.until("ready")
        await publish(hosts[0].url, "a", "with")
        for stream in (one, many):
            assert [m["data"] for m in await stream.messages(1)] == ["with"]
        os.kill(redis_pid(own_redis), number)
        await publish(hosts[0].url, "a", *range(10))
        for stream in (one, many):
            assert [m["data"] for m in await stream.messages(10)] == list(range(10))
        if number == signal.SIGSTOP:
            os.kill(redis_pid(own_redis), signal.SIGCONT)
        else:
            await eventually(lambda: not own_redis.alive())
            own_redis.start()
        await publish(hosts[0].url, "a", "again")
        for stream in (one, many):
            assert [m["data"] for m in await stream.messages(1)] == ["again"]


@pytest.fixture
async def own_postgres(tmp_path: Path) -> AsyncIterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(tmp_path / "postgres")
    server.start()
    yield server
    server.stop()


async def test_postgres_killed_and_back(serve: Serve, own_postgres: EmbeddedPostgres) -> None:
    urls = {"GAPLESS_DATABASE_URL": own_postgres.service_url, "GAPLESS_MIGRATE_URL": own_postgres.owner_url}
    service = serve(**urls)
    await publish(service.url, "a", 1)
    async with subscribe(service.url, "a", from_="earliest") as stream:
        await stream.until("ready")
        assert own_postgres.pid is not None
        os.kill(own_postgres.pid, signal.SIGKILL)
        async with http_client(service.url) as client:

            async def refused() -> bool:
                answer = await client.post("/v1/channels/a/messages", json={"data": "unsure"})
                return answer.status_code == 503 and "retry-after" in answer.headers

            await eventually(refused)
            assert (await client.get("/readyz")).status_code == 503
            assert (await client.get("/healthz")).status_code == 200
            await eventually(lambda: not own_postgres.alive())
            own_postgres.start()

            async def accepted() -> bool:
                answer = await client.post("/v1/channels/a/messages", json={"data": "back"})
                return answer.status_code == 201

            await eventually(accepted)
            stored = (await client.get("/v1/channels/a/messages")).json()["messages"]
        rest = await stream.messages(len(stored) - 1)
        assert [m["id"] for m in rest] == [m["id"] for m in stored[1:]]
        assert [m["seq"] for m in stored] == list(range(1, len(stored) + 1))


async def test_a_reader_that_takes_nothing_is_cut_and_resumes(
    serve: Serve, owner: asyncpg.Connection
) -> None:
    # The other service is for who reads and may be late.
    service, other = serve(GAPLESS_SLOW_READER_TIMEOUT="1"), serve()
    host, port = service.url.removeprefix("http://").split(":")
    idle = socket.socket()
    idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    idle.connect((host, int(port)))
    idle.sendall(b"GET /v1/subscribe?channel=big&from=earliest HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for _ in range(16):
        await publish(other.url, "big", "x" * 900_000)
    async with http_client(service.url) as client:

        async def cut() -> bool:
            text = (await client.get("/metrics")).text
            return 'gapless_streams_cut_total{reason="slow_consumer"} 1.0' in text

        await eventually(cut)
    idle.close()
    async with subscribe(other.url, "big", from_="earliest") as stream:
        assert [m["seq"] for m in await stream.messages(16)] == list(range(1, 17))


async def test_an_idle_write_transaction_elsewhere_delays_no_reader(
    serve: Serve, database: Database, owner: asyncpg.Connection
) -> None:
    service = serve()
    await owner.execute("create table public.elsewhere (a int)")
    other = await asyncpg.connect(database.owner_url)
    await other.execute("begin; insert into public.elsewhere values (1)")
    async with subscribe(service.url, "a", "b.>") as many, subscribe(service.url, "a") as one:
        for stream in (many, one):
            await stream.until("ready")
        await publish(service.url, "a", *range(5))
        await owner.execute("select gapless.publish('b.sql', '5')")
        assert [m["data"] for m in await many.messages(6)] == list(range(6))
        assert [m["data"] for m in await one.messages(5)] == list(range(5))
        assert other.is_in_transaction()
    other.terminate()


async def test_sql_publishes_in_a_long_transaction(
    serve: Serve, database: Database, owner: asyncpg.Connection
) -> None:
    service = serve()
    async with subscribe(service.url, "a") as one, subscribe(service.url, ">") as many:
        for stream in (one, many):
            await stream.until("ready")
        await owner.execute("begin; select gapless.publish('a', '\"held\"', key => 'k')")
        await publish(service.url, "a", "first")
        for stream in (one, many):
            assert [m["data"] for m in await stream.messages(1)] == ["first"]
        await owner.execute("commit")
        await owner.execute("begin; select gapless.publish('a', '\"never\"'); rollback")
        await publish(service.url, "a", "last")
        for stream in (one, many):
            rest = await stream.messages(2)
            assert [(m["data"], m["seq"]) for m in rest] == [("held", 2), ("last", 3)]


async def test_a_stream_lost_while_it_is_opened_is_let_go(serve: Serve, database: Database) -> None:
    service = serve()
    await publish(service.url, "a", 1)
    holder, watcher = [await asyncpg.connect(database.owner_url) for _ in range(2)]
    host, port = service.url.removeprefix("http://").split(":")
    async with http_client(service.url) as client:
        async with holder.transaction():
            await holder.execute("lock table gapless.channels in access exclusive mode")
            async with connected(host, int(port)) as (_, writer):
                writer.write(b"GET /v1/subscribe?channel=a&last=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
                await until_waiting(watcher)
            # Answered after the end of the other connection was heard of.
            assert (await client.get("/healthz")).status_code == 200

        async def opened_and_gone() -> bool:
            lines = (await client.get("/metrics")).text.splitlines()
            opened = any(
                line.startswith("gapless_http_requests_total{") and '"sse"' in line for line in lines
            )
            return opened and "gapless_streams 0.0" in lines

        await eventually(opened_and_gone)
    holder.terminate()
    watcher.terminate()
