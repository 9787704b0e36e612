"""Namespaces that were made while a service runs, each with definitions of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import asyncpg

from tests.conftest import Serve
from tests.hook import Hook, hook
from tests.integration.queueing import Host
from tests.integration.test_keys import EVERYTHING, bearer
from tests.integration.test_webhooks import ALLOW, OK
from tests.patience import eventually

PUSHED: dict[str, Any] = {"channels": ["later.>"], "start": "earliest"}


async def leave_work(serve: Serve, namespace: str, url: str) -> None:
    """A webhook and a message that waits for its time, in a namespace whose only service ends."""
    service = serve(**ALLOW, GAPLESS_NAMESPACE=namespace)
    async with Host(service.url) as host:
        body = {**PUSHED, "push": {"url": url, "secret": "whsec_" + "c2VjcmV0" * 4}}
        await host.ask("PUT", "/v1/subscriptions/hook", 201, json=body)
        body = {"data": namespace, "delay": 3600}
        await host.ask("POST", "/v1/channels/later.x/messages", 202, json=body)
    service.kill()


def _data(there: Hook, number: int) -> Any:
    _, _, body = there.requests[number]
    return json.loads(body)["data"]


async def let_all_be_due(owner: asyncpg.Connection) -> None:
    await owner.execute("update gapless.scheduled set deliver_at = clock_timestamp()")


async def waiting(owner: asyncpg.Connection) -> list[str]:
    """The namespaces in which something is scheduled."""
    rows = await owner.fetch(
        "select distinct n.name from gapless.scheduled s join gapless.namespaces n on n.id = s.namespace_id"
        " order by n.name"
    )
    return [row["name"] for row in rows]


async def test_a_running_service_serves_a_namespace_that_is_made(
    serve: Serve, owner: asyncpg.Connection
) -> None:
    async with hook(OK) as there:
        for name in ("acme", "blue"):
            await leave_work(serve, name, there.target().url)
        await let_all_be_due(owner)
        async with Host(serve(**ALLOW).url) as host:
            await host.publish("a", "mine")
            assert await waiting(owner) == ["acme", "blue"]
            await owner.fetchval("select gapless.put_namespace('acme', null)")
            await eventually(lambda: there.requests)
            assert _data(there, 0) == "acme"
            assert await waiting(owner) == ["blue"]


async def test_a_namespace_is_served_when_its_making_is_answered(
    serve: Serve, owner: asyncpg.Connection
) -> None:
    """Each of several, so that no look of the service at the namespaces comes just in between."""
    async with Host(serve().url) as host:
        root = (await host.ask("POST", "/v1/keys", 201, json={"name": "root", "grants": EVERYTHING}))["key"]
        await owner.execute("update gapless.keys set operator = true, grants = null")
        await owner.execute("update gapless.log set keys_version = keys_version + 1")
        operator = {"headers": bearer(root)}

        async def operates() -> bool:
            return bool((await host.ask("GET", "/v1/whoami", 200, **operator))["operator"])

        await eventually(operates)
        for name in ("a", "b", "c", "d", "e"):
            await host.ask("PUT", f"/v1/namespaces/{name}", 201, json={}, **operator)
            body = {"name": name, "grants": EVERYTHING, "namespace": name}
            made = await host.ask("POST", "/v1/keys", 201, json=body, **operator)
            there = {"headers": bearer(made["key"])}
            assert (await host.ask("GET", "/v1/scheduled", 200, **there))["scheduled"] == []
            await host.ask("DELETE", f"/v1/namespaces/{name}", 204, **operator)
            await host.ask("PUT", f"/v1/namespaces/{name}", 201, json={}, **operator)


async def test_broken_definitions_close_one_namespace_only(
    serve: Serve, owner: asyncpg.Connection, tmp_path: Path
) -> None:
    async with hook(OK) as there:
        for name in ("acme", "blue"):
            await leave_work(serve, name, there.target().url)
        await let_all_be_due(owner)
        (tmp_path / "acme.json").write_text("{broken")
        (tmp_path / "blue.json").write_text(json.dumps({"channels": [{"name": "of-blue"}]}))
        (tmp_path / "default.json").write_text(json.dumps({"channels": [{"name": "of-default"}]}))
        (tmp_path / "not a name.json").write_text("{}")
        async with Host(serve(**ALLOW, GAPLESS_DEFINITIONS=str(tmp_path)).url) as host:
            names = [c["name"] for c in (await host.ask("GET", "/v1/channels"))["channels"]]
            assert names == ["of-default"]
            await eventually(lambda: there.requests)
            assert _data(there, 0) == "blue"
            assert await waiting(owner) == ["acme"]
            (tmp_path / "acme.json").write_text("{}")
            await eventually(lambda: len(there.requests) == 2)
            assert _data(there, 1) == "acme"
            assert await waiting(owner) == []
