"""What a service does, and what it leaves alone, until its definitions are loaded."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from load.children import free_port
from load.failover.cluster import Cluster
from tests.conftest import Serve
from tests.integration.queueing import Delivery, Host, Queue
from tests.patience import eventually
from tests.support import RunningService

DUE = [
    "update gapless.messages set expires_at = clock_timestamp() where expires_at is not null",
    "with ended as (update gapless.deliveries set at = clock_timestamp()"
    " where subscription_id > 0 and state = 0 returning subscription_id, at)"
    " update gapless.progress p set next_end = least(p.next_end, e.at) from ended e"
    " where p.subscription_id = e.subscription_id",
    "update gapless.scheduled set deliver_at = clock_timestamp()",
]
LATE = [
    "select bool_and(expires_at < clock_timestamp()) from gapless.messages where expires_at is not null",
    "select bool_and(at < clock_timestamp()) from gapless.deliveries where subscription_id > 0 and state = 0",
    "select bool_and(deliver_at < clock_timestamp()) from gapless.scheduled",
]
HIDE_SECRET = [
    "revoke select on gapless.log from gapless_service",
    "grant select (singleton, epoch, trimmed_id, created_at, credentials_required, keys_version)"
    " on gapless.log to gapless_service",
]
ROUTE = {"name": "route", "pattern": ">", "applies_to": "subscriptions"}


@asynccontextmanager
async def starting(
    serve: Serve, **environment: str
) -> AsyncIterator[tuple[Host, asyncio.Task[RunningService]]]:
    """A service that listens and may not be ready yet; the task ends when it says that it is."""
    port = free_port()
    task = asyncio.create_task(asyncio.to_thread(serve, "--port", str(port), **environment))
    async with Host(f"http://127.0.0.1:{port}") as host:
        await eventually(lambda: _answers(host))
        try:
            yield host, task
        finally:
            await asyncio.wait([task])  # Else a failure leaves a thread, and a service that nobody ends.
        await task


async def _answers(host: Host) -> bool:
    try:
        return (await host.http.get("/healthz")).status_code == 200
    except httpx.TransportError:
        return False


async def obstacle(host: Host) -> str | None:
    """Why it is not ready."""
    answer = await host.http.get("/readyz")
    assert answer.status_code in (200, 503)
    return None if answer.status_code == 200 else answer.json()["detail"]


async def leave_work(host: Host) -> Delivery:
    """A lease for the last time, a message that expires, one that waits for its time: none is due yet."""
    queue = await host.subscribe("q", ack_wait=3600, max_deliver=1)
    await host.publish("q", "leased")
    (delivery,) = await queue.take(1)
    await host.subscribe("expiring", "e")
    await host.publish("e", "expires", ttl=3600)
    body = {"data": "scheduled", "delay": 3600}
    await host.ask("POST", "/v1/channels/s/messages", 202, json=body)
    return delivery


async def let_all_be_due(owner: asyncpg.Connection) -> None:
    """As if its time had come, now that nobody is there to decide about it."""
    for statement in DUE:
        await owner.execute(statement)
    for statement in LATE:
        assert await owner.fetchval(statement)


async def test_nothing_is_decided_before_the_definitions_are_there(
    serve: Serve, owner: asyncpg.Connection, tmp_path: Path
) -> None:
    before = serve()
    async with Host(before.url) as host:
        delivery = await leave_work(host)
        before.kill()
    await let_all_be_due(owner)
    # The route of what dies is in a file that the next start brings. Who reads it waits until it is written.
    route = {**ROUTE, "definition": {"dead_letter": {"channel": "dead.{subscription}"}}}
    file = tmp_path / "definitions.json"
    os.mkfifo(file)
    async with starting(serve, GAPLESS_DEFINITIONS=str(file)) as (host, ready):
        try:
            await eventually(partial(_told, host, "the definitions are not loaded yet"))
            await refused_meanwhile(host, delivery)
            await asyncio.sleep(0.3)  # Time to decide, for whoever does not wait.
            dead = await owner.fetchval("select count(*) from gapless.dead_letters")
            waiting = await owner.fetchval("select count(*) from gapless.scheduled")
            assert (dead, waiting, ready.done()) == (0, 1, False)
        finally:
            text = json.dumps({"version": 1, "policies": [route]})
            await asyncio.to_thread(file.write_text, text)
        await ready
        assert await obstacle(host) is None
        await all_came_as_it_should(host)


async def test_nothing_is_leased_before_receipts_can_be_written(
    serve: Serve, owner: asyncpg.Connection
) -> None:
    before = serve()
    async with Host(before.url) as host:
        await host.subscribe("q")
        await host.publish("q", "first")
        before.kill()
    # The service cannot learn what signs receipts, and tries again.
    for statement in HIDE_SECRET:
        await owner.execute(statement)
    async with starting(serve) as (host, ready):
        try:
            await host.ask("POST", "/v1/subscriptions/q/pull", 503, json={"max": 1})
            assert not ready.done()
        finally:
            await owner.execute("grant select on gapless.log to gapless_service")
        await ready
        answer = await host.ask("POST", "/v1/subscriptions/q/pull", 200, json={"max": 1})
        assert [delivery["attempt"] for delivery in answer["deliveries"]] == [1]


async def refused_meanwhile(host: Host, delivery: Delivery) -> None:
    """All that decides is put off; what needs no definition works."""
    assert await obstacle(host) == "the definitions are not loaded yet"
    receipts = {"receipts": [delivery["receipt"]]}
    asks: list[tuple[str, str, Any]] = [
        ("POST", "/v1/subscriptions/q/pull", {"max": 1}),
        ("POST", "/v1/subscriptions/q/ack", receipts),
        ("POST", "/v1/subscriptions/q/nack", receipts),
        ("POST", "/v1/subscriptions/q/extend", receipts),
        ("GET", "/v1/subscriptions/q/consume", None),
        ("POST", "/v1/transactions", {"publish": [{"channel": "c", "data": 1}]}),
        ("POST", "/v1/channels/c/messages", {"data": 1, "delay": 5}),
        ("POST", "/v1/dead-letters/replay", {}),
        ("GET", "/v1/scheduled", None),
    ]
    for method, path, body in asks:
        answer = await host.http.request(method, path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable"), (path, answer.text)
        assert answer.headers["retry-after"]
    await host.publish("q", "meanwhile")


async def all_came_as_it_should(host: Host) -> None:
    async def letters() -> list[Any]:
        found = await host.letters()
        return found if len(found) == 2 else []

    found = {e["subscription"]: e for e in await eventually(letters)}
    assert (found["q"]["reason"], found["q"]["message"]["data"]) == ("max_deliver", "leased")
    assert (found["expiring"]["reason"], found["expiring"]["message"]["data"]) == ("expired", "expires")
    for name, entry in found.items():
        assert entry["published"]["channel"] == f"dead.{name}", "the file's route held for the first of them"
    await eventually(lambda: _has(host, "s"))
    (delivery,) = await Queue(host, "q").take(1)
    assert delivery["message"]["data"] == "meanwhile"


async def _has(host: Host, channel: str) -> bool:
    return (await host.http.get(f"/v1/channels/{channel}")).status_code == 200


async def test_a_file_that_is_wrong_is_told_of_until_it_is_right(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    async with starting(serve, GAPLESS_DEFINITIONS=str(file)) as (host, ready):
        why = await eventually(lambda: _mentions(host, "No such file"))
        assert str(tmp_path) not in why, "where files lie is nobody's business who asks over HTTP"
        file.write_text('{"version": 1, "subscriptions": [{"name": "s", "channels": ["a"], "ack_wait": -1}]}')
        why = await eventually(lambda: _mentions(host, "ack_wait"))
        assert "cannot be loaded" in why
        await host.publish("a", 1)
        file.write_text('{"version": 1, "subscriptions": [{"name": "s", "channels": ["a"], "ack_wait": 7}]}')
        await ready
        shown = await host.ask("GET", "/v1/subscriptions/s")
        assert (shown["ack_wait"], shown["origins"]["ack_wait"]) == (7, "own")


async def _mentions(host: Host, text: str) -> str | None:
    why = await obstacle(host)
    return why if why and text in why else None


async def test_the_file_is_brought_in_when_it_changed_and_takes_nothing_away(
    serve: Serve, tmp_path: Path
) -> None:
    file = tmp_path / "definitions.json"
    subscription = {"name": "s", "channels": ["a"], "start": "earliest"}
    file.write_text(json.dumps({"version": 1, "subscriptions": [subscription]}))
    first = serve(GAPLESS_DEFINITIONS=str(file))
    async with Host(first.url) as host:
        await host.publish("a", 1, 2)
        queue = Queue(host, "s")
        (one,) = await queue.take(1)
        await queue.ack(one)
        await host.subscribe("own")
        await host.ask("PATCH", "/v1/subscriptions/s", json={"max_deliver": 9})
        first.kill()
    async with Host(serve(GAPLESS_DEFINITIONS=str(file)).url) as host:
        (two,) = await Queue(host, "s").take(1)
        assert two["message"]["data"] == 2
        names = [s["name"] for s in (await host.ask("GET", "/v1/subscriptions"))["subscriptions"]]
        assert names == ["own", "s"]
        assert (await host.ask("GET", "/v1/subscriptions/s"))["max_deliver"] == 9
    file.write_text(json.dumps({"version": 1, "subscriptions": [{**subscription, "max_deliver": 2}]}))
    async with Host(serve(GAPLESS_DEFINITIONS=str(file)).url) as host:
        assert (await host.ask("GET", "/v1/subscriptions/s"))["max_deliver"] == 2


@pytest.mark.drill
async def test_a_standby_is_not_ready_until_it_is_promoted(serve: Serve) -> None:
    """It would answer reads, and refuse every publish."""
    cluster = Cluster()
    try:
        await cluster.start(fenced=True)
        await asyncio.to_thread(cluster.follow)
        urls = {"GAPLESS_DATABASE_URL": cluster.standby.url, "GAPLESS_MIGRATE_URL": cluster.standby.url}
        async with starting(serve, **urls) as (host, _):
            await eventually(partial(_told, host, "takes no writes"))
            await cluster.promote()
            await eventually(partial(_told, host, None))
            await host.publish("first", 1)
    finally:
        cluster.remove()


@pytest.mark.drill
async def test_a_service_that_cannot_read_the_log_is_not_ready(
    serve: Serve, owner: asyncpg.Connection
) -> None:
    """Publishes are stored, and nobody gets them."""
    async with Host((await asyncio.to_thread(serve)).url) as host:
        await owner.execute("revoke execute on function gapless.tick(integer) from gapless_service")
        await eventually(partial(_told, host, "the log cannot be read"))
        await host.publish("a", 1)
        await owner.execute("grant execute on function gapless.tick(integer) to gapless_service")
        await eventually(partial(_told, host, None))


async def _told(host: Host, detail: str | None) -> bool:
    found = await obstacle(host)
    return found is None if detail is None else found is not None and detail in found
