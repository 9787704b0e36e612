"""What `/metrics` tells of durable subscriptions and of the workers' processes."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import asyncpg
import httpx

from app.metrics.measuring import measured
from db.connect import DatabaseConfig, Pool
from db.measures import Measures
from tests.conftest import Database, Serve
from tests.patience import PATIENCE_S, eventually
from tests.race.support import sessions
from tests.support import RunningService

_SAMPLE = re.compile(r"^([a-z_]+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


def scrape(url: str) -> dict[str, dict[str, float]]:
    """Values by metric and labels."""
    found: dict[str, dict[str, float]] = {}
    for name, labels, value in _SAMPLE.findall(httpx.get(f"{url}/metrics", timeout=PATIENCE_S).text):
        found.setdefault(name, {})[labels] = float(value)
    return found


def of(url: str, name: str) -> dict[str, float]:
    """What is told of one subscription."""
    labels = f'namespace="default",subscription="{name}"'
    told = {metric: values[labels] for metric, values in scrape(url).items() if labels in values}
    return {metric.removeprefix("gapless_subscription_"): value for metric, value in told.items()}


def workers(service: RunningService) -> set[int]:
    """The workers' processes."""
    found = set()
    for folder in Path("/proc").iterdir():
        try:
            if not folder.name.isdigit() or b"app.process.worker" not in (folder / "cmdline").read_bytes():
                continue
            if int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1]) == service.process.pid:
                found.add(int(folder.name))
        except OSError:
            continue
    return found


async def test_each_worker_tells_where_subscriptions_stand_and_how_all_the_processes_do(serve: Serve) -> None:
    service = serve("--workers", "2", GAPLESS_METRICS_INTERVAL="1")
    with httpx.Client(base_url=service.url, timeout=PATIENCE_S) as client:
        name = "/v1/subscriptions/billing"
        definition = {"channels": ["orders"], "start": "earliest", "ack_wait": 3600}
        assert client.put(name, json=definition).status_code == 201
        messages = [{"data": number} for number in range(6)]
        assert client.post("/v1/channels/orders/messages", json=messages).status_code == 201
        pulled = client.post(f"{name}/pull", json={"max": 3, "wait": 10}).json()["deliveries"]
        first, second = pulled[0]["receipt"], pulled[1]["receipt"]
        client.post(f"{name}/nack", json={"receipts": [first], "dead_letter": True}).raise_for_status()
        client.post(f"{name}/ack", json={"receipts": [second]}).raise_for_status()
        told = await eventually(lambda: _with(of(service.url, "billing"), in_flight=1.0, dead_letters=1.0))
        counted = {"lag_messages": 3, "acked_total": 1, "dead_lettered_total": 1, "redelivered_total": 0}
        assert {metric: told[metric] for metric in counted} == counted
        assert told["oldest_unacked_seconds"] >= told["lag_seconds"] > 0
        found = await eventually(lambda: _of_all(scrape(service.url), 2))
        assert set(found["process_cpu_seconds_total"]) == {'worker="0"', 'worker="1"'}
        client.delete(name).raise_for_status()
        await eventually(lambda: not of(service.url, "billing"))
    await eventually(lambda: scrape(service.url)["gapless_head_id"] == {"": 6.0})
    assert scrape(service.url)["gapless_ids_left"] == {"": 2.0**53 - 1 - 6}
    await eventually(lambda: scrape(service.url)["gapless_settled_id"] == {"": 6.0})


def _of_all(found: dict[str, dict[str, float]], workers: int) -> dict[str, dict[str, float]] | None:
    """What was found, once each worker tells of its process."""
    told = (found.get(name, {}) for name in ("process_resident_memory_bytes", "python_info"))
    return found if all(len(values) == workers for values in told) else None


def _with(told: dict[str, float], **wanted: float) -> dict[str, float] | None:
    return told if wanted.items() <= told.items() else None


async def test_what_a_worker_had_open_is_forgotten_when_it_is_killed(serve: Serve) -> None:
    service = serve("--workers", "2")
    with (
        httpx.Client(timeout=PATIENCE_S) as client,
        client.stream("GET", f"{service.url}/v1/subscribe?channel=a&from=earliest") as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines) == "retry: 1000"
        await eventually(lambda: scrape(service.url)["gapless_streams"] == {"": 1.0})
        before = workers(service)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
    await eventually(lambda: len(workers(service) - before) == 2)
    await eventually(lambda: _streams(service.url) == {"": 0.0})


def _streams(url: str) -> dict[str, float] | None:
    try:
        return scrape(url).get("gapless_streams")
    except httpx.TransportError:
        return None


async def test_no_more_subscriptions_are_told_of_than_was_said(database: Database, serve: Serve) -> None:
    service = serve(GAPLESS_METRICS_INTERVAL="1", GAPLESS_METRICS_SUBSCRIPTIONS="2")
    for number in range(3):
        address = f"{service.url}/v1/subscriptions/s{number}"
        assert httpx.put(address, json={"channels": ["a"]}, timeout=PATIENCE_S).status_code == 201
    await eventually(lambda: scrape(service.url).get("gapless_subscriptions_unmeasured") == {"": 1.0})
    assert len(scrape(service.url)["gapless_subscription_in_flight"]) == 2
    pool = Pool(DatabaseConfig(database.service_url), application="test", size=1)
    measures = Measures(pool)
    found, count = await measured(measures, 2)
    assert ([m.subscription for m in found], count) == (["s0", "s1"], 3)
    found, count = await measured(measures, 9)
    assert ([m.subscription for m in found], count) == (["s0", "s1", "s2"], 3)
    await pool.close()


async def test_a_message_that_no_hint_told_of_is_counted(serve: Serve, owner: asyncpg.Connection) -> None:
    service = serve()
    with (
        httpx.Client(timeout=PATIENCE_S) as client,
        client.stream("GET", f"{service.url}/v1/subscribe?channel=a&from=earliest") as stream,
    ):
        lines = stream.iter_lines()
        assert [next(lines) for _ in range(3)][-1] == "event: ready"
        await owner.execute("select gapless.publish('a', '1')")
        await eventually(lambda: scrape(service.url)["gapless_hints_missed_total"] == {"": 1.0})


async def test_a_last_id_that_went_back_is_counted(
    serve: Serve, database: Database, owner: asyncpg.Connection
) -> None:
    """One reading is ahead of what was taken, while somebody publishes; the next one shows it."""
    service = serve()
    assert scrape(service.url)["gapless_watermark_regressions_total"] == {"": 0.0}
    exact = await owner.fetchval("select pg_get_functiondef('gapless_internal.last_id'::regproc)")
    ahead = exact.replace("0)", "0) + 32")
    assert ahead != exact
    async with sessions(database.owner_url, 1) as (publisher,), publisher.transaction():
        await publisher.execute("lock table gapless.publishing_lock in row share mode")
        await owner.execute(ahead)
        await eventually(lambda: scrape(service.url)["gapless_ids_unsettled"][""] >= 32)
        await owner.execute(exact)
        await eventually(lambda: scrape(service.url)["gapless_watermark_regressions_total"] == {"": 1.0})
