"""Subscriptions as users of brokers know them: conditional changes, purges, removal, gaps, lengths."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import httpx

from tests.conftest import Serve
from tests.integration.queueing import WAIT_S, Host, data, deliveries
from tests.patience import eventually

Both = tuple[Host, Host]


async def answer(host: Host, method: str, path: str, status: int, **more: Any) -> httpx.Response:
    got = await host.http.request(method, path, **more)
    assert got.status_code == status, (got.status_code, got.text)
    return got


def match(tag: str) -> dict[str, str]:
    return {"If-Match": tag}


async def test_tags_of_a_subscription(hosts: Both) -> None:
    one, two = hosts
    path, body = "/v1/subscriptions/tags", {"channels": ["tags"], "start": "earliest"}
    await answer(one, "PUT", path, 412, json=body, headers=match('"x"'))
    made = await answer(one, "PUT", path, 201, json=body, headers={"If-None-Match": "*"})
    tag = made.headers["etag"]
    assert tag == (await answer(two, "GET", path, 200)).headers["etag"]
    refused = await answer(one, "PUT", path, 412, json=body, headers={"If-None-Match": "*"})
    assert (refused.json()["code"], refused.json()["retryable"]) == ("precondition_failed", False)
    changed = await answer(two, "PATCH", path, 200, json={"ack_wait": 5}, headers=match(tag))
    newer = changed.headers["etag"]
    assert newer != tag
    for method, at, more in (
        ("PATCH", path, {"json": {"ack_wait": 6}}),
        ("PUT", path, {"json": body}),
        ("POST", f"{path}/bind", {"json": {"channels": ["x"]}}),
        ("POST", f"{path}/unbind", {"json": {"channels": ["tags"]}}),
        ("POST", f"{path}/pause", {}),
        ("POST", f"{path}/resume", {}),
        ("POST", f"{path}/seek", {"json": {"to": "latest"}}),
        ("POST", f"{path}/seek?dry_run=true", {"json": {"to": "latest"}}),
        ("POST", f"{path}/purge", {}),
        ("DELETE", path, {}),
    ):
        for stale in (tag, f"W/{newer}", f'"a", {tag}'):
            await answer(one, method, at, 412, headers=match(stale), **more)
    assert (await one.ask("GET", path))["ack_wait"] == 5
    for nonsense in ("x", '"x', "", '"a" "b"'):
        await answer(one, "PATCH", path, 400, json={"ack_wait": 6}, headers=match(nonsense))
    await answer(one, "PUT", path, 400, json=body, headers={"If-None-Match": tag})
    await answer(one, "PUT", path, 409, json=body)
    replaced = await answer(one, "PUT", path, 200, json=body, headers=match(f'"a" , {newer}'))
    assert replaced.headers["etag"] == tag
    assert replaced.json()["origins"]["ack_wait"] == "default"
    bound = await answer(one, "POST", f"{path}/bind", 200, json={"channels": ["x"]}, headers=match(tag))
    tag = bound.headers["etag"]
    for verb, to in (("seek", "latest"), ("seek?dry_run=true", "earliest")):
        moved = await answer(one, "POST", f"{path}/{verb}", 200, headers=match(tag), json={"to": to})
        assert moved.headers["etag"] == tag
    await answer(two, "POST", f"{path}/purge", 200, headers=match(tag))
    paused = (await answer(one, "POST", f"{path}/pause", 200, headers=match(tag))).headers["etag"]
    assert paused != tag
    await answer(one, "POST", f"{path}/resume", 412, headers=match(tag))
    resumed = await answer(one, "POST", f"{path}/resume", 200, headers=match(paused))
    assert resumed.headers["etag"] == tag
    await answer(two, "DELETE", path, 204, headers=match(tag))
    await answer(two, "DELETE", path, 404, headers=match(tag))


async def test_tags_of_a_channel(hosts: Both) -> None:
    one, two = hosts
    path = "/v1/channels/tags.channel"
    await answer(one, "PUT", path, 412, json={}, headers=match("*"))
    await answer(one, "PATCH", path, 404, json={}, headers=match("*"))
    made = await answer(one, "PUT", path, 201, json={"message_ttl": 60}, headers={"If-None-Match": "*"})
    tag = made.headers["etag"]
    refused = await answer(one, "PUT", path, 412, json={}, headers={"If-None-Match": "*"})
    assert refused.json()["code"] == "precondition_failed"
    await one.publish("tags.channel", 1)
    assert (await answer(two, "GET", path, 200)).headers["etag"] == tag
    changed = await answer(two, "PATCH", path, 200, json={"message_ttl": 61}, headers=match(tag))
    newer = changed.headers["etag"]
    changes: list[tuple[str, dict[str, Any]]] = [
        ("PATCH", {"json": {}}),
        ("PUT", {"json": {}}),
        ("DELETE", {}),
    ]
    for method, more in changes:
        for stale in (tag, f"W/{newer}"):
            await answer(one, method, path, 412, headers=match(stale), **more)
        await answer(one, method, path, 400, headers=match("x"), **more)
    assert (await one.ask("GET", path))["message_ttl"] == 61
    replaced = await answer(one, "PUT", path, 200, json={"message_ttl": 60}, headers=match(newer))
    assert replaced.headers["etag"] == tag
    await answer(two, "DELETE", path, 204, headers=match(tag))


async def test_tags_of_policies_and_of_all(hosts: Both) -> None:
    one, two = hosts
    path = "/v1/policies/tags"
    body = {"pattern": "none.>", "applies_to": "subscriptions", "definition": {"ack_wait": 9}}
    whole = (await answer(one, "GET", "/v1/definitions", 200)).headers["etag"]
    tag = (await answer(one, "PUT", path, 201, json=body, headers={"If-None-Match": "*"})).headers["etag"]
    assert tag == (await answer(two, "GET", path, 200)).headers["etag"]
    await answer(one, "PUT", path, 412, json=body, headers={"If-None-Match": "*"})
    later = (await answer(one, "PUT", path, 200, json={**body, "priority": 2}, headers=match(tag))).headers[
        "etag"
    ]
    await answer(one, "DELETE", path, 412, headers=match(tag))
    document = {"policies": [{"name": "tags", **body}]}
    await answer(one, "POST", "/v1/definitions", 412, json=document, headers=match(whole))
    whole = (await answer(two, "GET", "/v1/definitions", 200)).headers["etag"]
    await answer(one, "POST", "/v1/definitions", 200, json=document, headers=match(whole))
    assert (await answer(two, "GET", path, 200)).headers["etag"] == tag != later
    await answer(two, "DELETE", path, 204, headers=match(tag))


async def test_a_purge_takes_all_that_was_published_before(hosts: Both) -> None:
    one, two = hosts
    queue = await one.subscribe("purge", "purge.*")
    await one.publish("purge.a", *range(5))
    (first,) = await queue.pull(1)
    for n in range(20):
        await two.publish("purge.b", n)
        expected = 5 if n == 0 else 1
        assert await one.ask("POST", "/v1/subscriptions/purge/purge") == {"purged": expected}
    assert await queue.ack(first) == ["acked"]
    assert (await queue.stats())["purged"] == 24
    await one.ask("POST", "/v1/subscriptions/no/purge", 404)
    length = await two.ask("GET", "/v1/subscriptions/purge/length")
    assert length == {"lag": 0, "in_flight": 0, "exact": True}
    await one.ask("GET", "/v1/subscriptions/no/length", 404)


async def test_not_deleted_while_it_holds_or_serves_somebody(hosts: Both, sql: asyncpg.Connection) -> None:
    one, two = hosts
    queue = await one.subscribe("kept")
    await one.publish("kept", 1)
    path = "/v1/subscriptions/kept"
    refused = await one.ask("DELETE", path, 409, params={"if_empty": "true"})
    assert refused["code"] == "conflict"
    await queue.take(1)
    await one.ask("DELETE", path, 409, params={"if_empty": "true"})
    async with queue.at(two).consume():
        for host in hosts:
            await host.ask("DELETE", path, 409, params={"if_unused": "true"})

    async def unused() -> bool:
        return (await one.http.delete(path, params={"if_unused": "true"})).status_code == 204

    await eventually(unused)
    queue = await one.subscribe("kept", start="latest")
    pulling = asyncio.create_task(queue.pull(wait=WAIT_S))

    async def waits() -> bool:
        return bool(await sql.fetchval("select count(*) = 1 from gapless.attendance"))

    await eventually(waits)
    await two.ask("DELETE", path, 409, params={"if_unused": "true"})
    await one.publish("kept", 2)
    assert len(await pulling) == 1


async def test_a_stream_is_told_what_retention_took(serve: Serve) -> None:
    service = serve(GAPLESS_MAINTENANCE_INTERVAL="0.2")
    async with Host(service.url) as host:
        queue = await host.subscribe("lossy")
        await host.subscribe("kept", "lossy", retain=True)
        await host.publish("lossy", *range(10))
        rule = {"retention": {"max_messages": 3}}
        await host.ask("PUT", "/v1/channels/lossy", json=rule)
        assert (await host.ask("GET", "/v1/channels/lossy"))["first_seq"] == 1, "one waits for it"
        await host.ask("PATCH", "/v1/subscriptions/kept", json={"retain": False})

        async def trimmed() -> bool:
            return bool((await host.ask("GET", "/v1/channels/lossy"))["first_seq"] == 8)

        await eventually(trimmed)
        async with queue.consume() as stream:
            gap = await stream.block()
            assert gap is not None
            assert (gap.event, gap.id, gap.retry) == ("gap", None, "1000")
            assert gap.json == {"channel": "lossy", "first_seq": 8, "missed": 7}
            await queue.ack(*await deliveries(stream, 3))
            # No more than the channel keeps: retention may look before they are delivered.
            await host.publish("lossy", *range(10, 13))
            await queue.ack(*await deliveries(stream, 3))
        assert (await queue.stats())["removed_by_retention"] == 7
        await host.publish("lossy", 13)
        async with queue.consume() as stream:
            await deliveries(stream, 1)


async def test_a_pull_is_told_what_retention_took(serve: Serve) -> None:
    service = serve(GAPLESS_MAINTENANCE_INTERVAL="0.2")
    async with Host(service.url) as host:
        queue = await host.subscribe("pulled")
        await host.publish("pulled", *range(10))

        async def keep(count: int, first_seq: int) -> None:
            await host.ask("PUT", "/v1/channels/pulled", json={"retention": {"max_messages": count}})

            async def trimmed() -> bool:
                return bool((await host.ask("GET", "/v1/channels/pulled"))["first_seq"] == first_seq)

            await eventually(trimmed)

        await keep(3, 8)
        taken, gaps = await queue.pull_gaps(max=2)
        assert (data(taken), gaps) == ([7, 8], [{"channel": "pulled", "first_seq": 8, "missed": 7}])
        assert (await queue.pull_gaps(max=2))[1] is None
        await queue.ack(*taken)
        await host.publish("pulled", *range(10, 20))
        await keep(3, 18)
        taken, gaps = await queue.pull_gaps(max=10, wait=WAIT_S)
        assert (data(taken), gaps) == ([17, 18, 19], [{"channel": "pulled", "first_seq": 18, "missed": 7}])
        assert (await queue.pull_gaps(max=2)) == ([], None)

        async def confirmed() -> bool:
            async with queue.consume() as stream:
                await host.publish("pulled", 20)
                block = await stream.block()
                return block is not None and block.event == "delivery"

        assert await confirmed(), "who was told is told for all"


async def test_one_that_nobody_uses_goes_and_that_is_logged(serve: Serve, owner: asyncpg.Connection) -> None:
    service = serve(GAPLESS_MAINTENANCE_INTERVAL="0.2")
    async with Host(service.url) as host:
        made = await host.subscribe("short", expires=3600)
        used = await host.subscribe("used", expires=3600)
        async with used.consume():

            async def attended() -> bool:
                return bool(await owner.fetchval("select count(*) = 1 from gapless.attendance"))

            # Before that, the one that is used might go too.
            await eventually(attended)
            for queue in (used, made):
                assert (await host.ask("GET", queue.path))["expires"] == 3600
                assert (await host.ask("PATCH", queue.path, json={"expires": 0.5}))["expires"] == 0.5

            async def gone() -> bool:
                return (await host.http.get(made.path)).status_code == 404

            await eventually(gone)
            assert (await host.http.get("/v1/subscriptions/used")).status_code == 200

        async def told() -> bool:
            counted = await host.metric("gapless_subscriptions_expired_total")
            return counted == 1 and '"gapless.audit"' in service.log

        await eventually(told)
