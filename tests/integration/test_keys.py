"""API keys against a running service: who may do what, and what ends with a key."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import httpx
import pytest
import websockets

from tests.conftest import Serve
from tests.patience import PATIENCE_S, eventually, http_client, in_time

EVERYTHING = [
    {
        "actions": ["publish", "subscribe", "consume", "manage", "admin"],
        "channels": [">"],
        "subscriptions": [">"],
    }
]
CHAT = [{"actions": ["publish", "subscribe", "consume"], "channels": ["chat.>"], "subscriptions": ["chat.>"]}]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def make(client: httpx.AsyncClient, name: str, grants: Any, by: str | None = None, **more: Any) -> Any:
    """A key, made with the key `by`."""
    body = {"name": name, "grants": grants, **more}
    answer = await client.post("/v1/keys", json=body, headers=bearer(by) if by else {})
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


async def status(client: httpx.AsyncClient, method: str, path: str, key: str | None, **more: Any) -> Any:
    answer = await client.request(method, path, headers=bearer(key) if key else {}, **more)
    return answer.status_code, answer.json()["code"] if answer.status_code >= 400 else None


@asynccontextmanager
async def events(client: httpx.AsyncClient, path: str, key: str | None) -> AsyncIterator[list[str]]:
    """The lines of a stream, as they come."""
    lines: list[str] = []

    def came(line: str) -> None:
        lines.append(line)

    async def read() -> None:
        headers = bearer(key) if key else {}
        async with client.stream("GET", path, headers=headers, timeout=PATIENCE_S) as answer:
            came(str(answer.status_code))
            async for line in answer.aiter_lines():
                came(line)
            came("end")

    task = asyncio.create_task(read())
    await eventually(lambda: lines)
    try:
        yield lines
    finally:
        task.cancel()
        await asyncio.wait([task])


GOODBYE = ["event: goodbye", 'data: {"reason":"credential_expired"}']


def said_goodbye(lines: list[str]) -> bool:
    return lines[-1] == "end" and all(line in lines for line in GOODBYE)


async def test_the_first_key_closes_the_installation_for_good(
    serve: Serve, owner: asyncpg.Connection
) -> None:
    service = serve("--workers", "2")
    async with http_client(service.url) as client:
        assert (await client.get("/v1/whoami")).json() == {
            "subject": None,
            "namespace": "default",
            "grants": None,
            "operator": False,
            "expires_at": None,
        }
        async with events(client, "/v1/subscribe?channel=chat.a", None) as lines:
            made = await make(client, "root", EVERYTHING)
            await eventually(lambda: said_goodbye(lines))
        root = made["key"]
        assert made["id"] in root
        assert "key" not in (await client.get("/v1/keys", headers=bearer(root))).json()["keys"][0]

        async def closed() -> bool:
            answers = [await status(client, "GET", "/v1/channels", None) for _ in range(4)]
            return all(answer == (401, "unauthenticated") for answer in answers)

        await eventually(closed)
        for path in ("/metrics", "/openapi.json", "/asyncapi.json", "/v1/keys", "/v1/whoami"):
            assert (await client.get(path)).status_code == 401, path
            assert (await client.get(path, headers=bearer(root))).status_code == 200, path
        for path in ("/", "/docs", "/healthz", "/readyz"):
            assert (await client.get(path)).status_code == 200, path
        refused = await client.get("/v1/whoami")
        assert refused.headers["www-authenticate"] == "Bearer"
        assert (await client.delete(f"/v1/keys/{made['id']}", headers=bearer(root))).status_code == 204
        await eventually(lambda: _is_refused(client, root))
        assert await status(client, "GET", "/v1/channels", None) == (401, "unauthenticated")
        await owner.execute("select gapless.open_installation()")
        await eventually(lambda: _is_open(client))


async def _is_refused(client: httpx.AsyncClient, key: str) -> bool:
    return all([await status(client, "GET", "/v1/whoami", key) == (401, "unauthenticated") for _ in range(4)])


async def _is_open(client: httpx.AsyncClient) -> bool:
    return all([(await client.get("/v1/channels")).status_code == 200 for _ in range(4)])


async def test_a_key_is_good_at_once_in_every_process(serve: Serve) -> None:
    service = serve("--workers", "2")
    async with http_client(service.url) as client:
        root = (await make(client, "root", EVERYTHING))["key"]
        for number in range(5):
            key = (await make(client, f"k{number}", CHAT, root))["key"]
            async with http_client(service.url) as another:
                for _ in range(4):
                    assert (await another.get("/v1/whoami", headers=bearer(key))).json()[
                        "subject"
                    ] == f"k{number}"


async def test_a_key_may_do_what_it_was_granted(serve: Serve) -> None:
    async with http_client(serve().url) as client:
        root = (await make(client, "root", EVERYTHING))["key"]
        key = (await make(client, "ann", CHAT, root))["key"]
        sent = await client.post("/v1/channels/chat.a/messages", json={"data": 1}, headers=bearer(key))
        assert sent.status_code == 201
        (message,) = (await client.get("/v1/channels/chat.a/messages", headers=bearer(key))).json()[
            "messages"
        ]
        assert message["sender"] == "ann"
        post = {"json": {"data": 1}}
        assert await status(client, "POST", "/v1/channels/other/messages", key, **post) == (403, "forbidden")
        assert await status(client, "GET", "/v1/keys", key) == (403, "forbidden")
        assert await status(client, "GET", "/v1/namespaces/default", root) == (403, "forbidden")
        mine = {"json": {"name": "more", "grants": [{"actions": ["moderate"], "channels": [">"]}]}}
        assert await status(client, "POST", "/v1/keys", root, **mine) == (403, "forbidden")
        more = {"json": {"name": "more", "grants": CHAT, "operator": True}}
        assert await status(client, "POST", "/v1/keys", root, **more) == (403, "forbidden")
        elsewhere = {"json": {"name": "more", "grants": CHAT, "namespace": "acme"}}
        assert await status(client, "POST", "/v1/keys", root, **elsewhere) == (403, "forbidden")
        async with events(client, "/v1/subscribe?channel=%3E&from=earliest", key) as lines:
            await client.post("/v1/channels/secret/messages", json={"data": "x"}, headers=bearer(root))
            await client.post("/v1/channels/chat.new/messages", json={"data": "y"}, headers=bearer(root))
            await eventually(lambda: any('"chat.new"' in line for line in lines))
            assert not any("secret" in line for line in lines)


async def test_a_key_that_expires_makes_none_that_outlives_it(
    serve: Serve, owner: asyncpg.Connection
) -> None:
    async with http_client(serve().url) as client:
        root = (await make(client, "root", EVERYTHING))["key"]
        until, after = "2100-01-01T00:00:00Z", "2100-01-01T00:00:00.000001Z"
        brief = (await make(client, "brief", EVERYTHING, root, expires_at=until))["key"]
        for more in ({}, {"expires_at": None}, {"expires_at": after}):
            asked = {"name": "heir", "grants": CHAT, **more}
            answer = await client.post("/v1/keys", json=asked, headers=bearer(brief))
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), more
            assert answer.json()["detail"].startswith(
                "expires_at: must be 2100-01-01T00:00:00.000000Z or before"
            )
        made = await make(client, "heir", CHAT, brief, expires_at="2100-01-01T01:00:00+01:00")
        assert made["expires_at"] == "2100-01-01T00:00:00.000000Z"
        await make(client, "heir", CHAT, root)
        await owner.execute("update gapless.keys set operator = true, grants = null where name = 'brief'")
        await owner.execute("update gapless.log set keys_version = keys_version + 1")
        await eventually(lambda: _operates(client, brief))
        await make(client, "heir", CHAT, brief)


async def test_only_an_operator_revokes_the_key_of_one(serve: Serve, owner: asyncpg.Connection) -> None:
    """An admin of the namespace sees it in the list, so it is forbidden, and not as if it were not there."""
    async with http_client(serve().url) as client:
        ops = await make(client, "ops", EVERYTHING)
        admin = await make(client, "admin", EVERYTHING, ops["key"])
        await owner.execute("update gapless.keys set operator = true, grants = null where name = 'ops'")
        await owner.execute("update gapless.log set keys_version = keys_version + 1")
        await eventually(lambda: _operates(client, ops["key"]))
        listed = (await client.get("/v1/keys", headers=bearer(admin["key"]))).json()["keys"]
        assert [key["id"] for key in listed] == [ops["id"], admin["id"]]
        path = f"/v1/keys/{ops['id']}"
        assert await status(client, "DELETE", path, admin["key"]) == (403, "forbidden")
        assert await _operates(client, ops["key"])
        assert (
            await client.put("/v1/namespaces/acme", json={}, headers=bearer(ops["key"]))
        ).status_code == 201
        there = (await make(client, "there", EVERYTHING, ops["key"], namespace="acme"))["key"]
        assert await status(client, "DELETE", path, there) == (404, "not_found")
        assert (
            await client.delete(f"/v1/keys/{admin['id']}", headers=bearer(admin["key"]))
        ).status_code == 204
        assert (await client.delete(path, headers=bearer(ops["key"]))).status_code == 204


async def _operates(client: httpx.AsyncClient, key: str) -> bool:
    return bool((await client.get("/v1/whoami", headers=bearer(key))).json()["operator"])


async def test_what_a_key_opened_ends_when_it_is_revoked(serve: Serve) -> None:
    service = serve()
    async with http_client(service.url) as client:
        root = (await make(client, "root", EVERYTHING))["key"]
        made = await make(client, "ann", CHAT, root)
        key = made["key"]
        queue = {"channels": ["chat.>"], "ack_wait": 3600}
        await client.put("/v1/subscriptions/chat.q", json=queue, headers=bearer(root))
        address = service.url.replace("http", "ws") + "/v1/ws"
        async with (
            events(client, "/v1/subscribe?channel=chat.a", key) as stream,
            events(client, "/v1/subscriptions/chat.q/consume", key) as member,
            websockets.connect(address, additional_headers=bearer(key)) as socket,
            events(client, "/v1/subscribe?channel=chat.a", root) as other,
        ):
            await socket.send(json.dumps({"id": 1, "connect": {}}))
            assert json.loads(await socket.recv())["connect"]
            sent = await client.post("/v1/channels/chat.a/messages", json={"data": 1}, headers=bearer(key))
            assert sent.status_code == 201
            await eventually(lambda: any("delivery" in line for line in member))
            assert (await client.delete(f"/v1/keys/{made['id']}", headers=bearer(root))).status_code == 204
            await eventually(lambda: said_goodbye(stream) and said_goodbye(member))
            with pytest.raises(websockets.ConnectionClosed) as closed:
                await in_time(read_on(socket))
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (3005, "connection expired")
            after = await client.post("/v1/channels/chat.a/messages", json={"data": 2}, headers=bearer(root))
            await eventually(lambda: any(f'"id":{after.json()["id"]}' in line for line in other))
            assert not any(f'"id":{after.json()["id"]}' in line for line in stream)
        # The lease ends with its stream, long before its deadline.
        taken: list[Any] = []

        async def both() -> bool:
            pull = {"max": 5, "ack": "auto"}
            pulled = await client.post("/v1/subscriptions/chat.q/pull", json=pull, headers=bearer(root))
            taken.extend(d["message"]["data"] for d in pulled.json()["deliveries"])
            return len(taken) == 2

        await eventually(both)
        assert sorted(taken) == [1, 2]
        assert (await client.delete(f"/v1/keys/{made['id']}", headers=bearer(root))).status_code == 404


async def read_on(socket: Any) -> None:
    """Until it is closed."""
    while True:
        await socket.recv()


async def test_an_operator_makes_namespaces_and_their_keys(serve: Serve, owner: asyncpg.Connection) -> None:
    async with http_client(serve().url) as client:
        root = (await make(client, "root", EVERYTHING))["key"]
        await owner.execute("update gapless.keys set operator = true, grants = null")
        await owner.execute("update gapless.log set keys_version = keys_version + 1")
        await eventually(lambda: _operates(client, root))
        made = await client.put("/v1/namespaces/acme", json={"limits": {"streams": 5}}, headers=bearer(root))
        assert (made.status_code, made.json()) == (201, {"name": "acme", "limits": {"streams": 5}})
        again = await client.put("/v1/namespaces/acme", json={}, headers=bearer(root))
        assert (again.status_code, again.json()) == (200, {"name": "acme", "limits": {"streams": 5}})
        key = (await make(client, "bot", EVERYTHING, root, namespace="acme"))["key"]
        there = bearer(key)
        assert (
            await client.post("/v1/channels/a/messages", json={"data": 1}, headers=there)
        ).status_code == 201
        names = [c["name"] for c in (await client.get("/v1/channels", headers=there)).json()["channels"]]
        assert names == ["a"]
        assert (await client.get("/v1/channels", headers=bearer(root))).json()["channels"] == []
        assert [k["name"] for k in (await client.get("/v1/keys", headers=there)).json()["keys"]] == ["bot"]
        async with events(client, "/v1/subscribe?channel=a", key) as lines:
            gone = await client.delete("/v1/namespaces/acme", headers=bearer(root))
            assert gone.status_code == 204
            await eventually(lambda: said_goodbye(lines))
        assert await status(client, "GET", "/v1/whoami", key) == (401, "unauthenticated")
        assert await status(client, "GET", "/v1/namespaces/acme", root) == (404, "not_found")
        assert await status(client, "DELETE", "/v1/namespaces/default", root) == (409, "conflict")


@pytest.mark.drill
async def test_an_export_is_cut_off_when_its_key_is_revoked(serve: Serve) -> None:
    """It is larger than what the connection and the process hold for a reader, so it waits for its reader."""
    async with http_client(serve().url) as client:
        root = (await make(client, "root", EVERYTHING))["key"]
        made = await make(client, "ann", CHAT, root)
        data = "x" * 500_000
        for _ in range(20):
            body = [{"data": data} for _ in range(10)]
            sent = await client.post("/v1/channels/chat.a/messages", json=body, headers=bearer(root))
            assert sent.status_code == 201
        headers = {**bearer(made["key"]), "accept": "application/x-ndjson"}

        async def revoked_half_way() -> None:
            async with client.stream("GET", "/v1/channels/chat.a/messages", headers=headers) as answer:
                chunks = answer.aiter_bytes(4096)
                await anext(chunks)
                gone = await client.delete(f"/v1/keys/{made['id']}", headers=bearer(root))
                assert gone.status_code == 204
                async for _ in chunks:
                    pass

        with pytest.raises(httpx.RemoteProtocolError):
            await revoked_half_way()


async def test_what_a_key_pulled_ends_when_it_is_revoked(serve: Serve, owner: asyncpg.Connection) -> None:
    async with http_client(serve().url) as client:
        root = (await make(client, "root", EVERYTHING))["key"]
        made = await make(client, "ann", CHAT, root)
        ann = bearer(made["key"])
        for name in ("chat.q", "chat.empty"):
            queue = {"channels": [name], "ack_wait": 3600}
            await client.put(f"/v1/subscriptions/{name}", json=queue, headers=bearer(root))
        body = [{"data": number} for number in range(4)]
        await client.post("/v1/channels/chat.q/messages", json=body, headers=ann)
        pulled = await client.post("/v1/subscriptions/chat.q/pull", json={"max": 3}, headers=ann)
        receipts = [each["receipt"] for each in pulled.json()["deliveries"]]
        kept = await client.post("/v1/subscriptions/chat.q/pull", json={}, headers=bearer(root))
        assert len(receipts) == 3
        await client.post("/v1/ack", json={"receipts": receipts[:1]}, headers=ann)
        extended = {"receipts": receipts[1:2], "ack_wait": 7200}
        (result,) = (await client.post("/v1/extend", json=extended, headers=ann)).json()["results"]
        assert result["status"] == "extended"
        waiting = asyncio.create_task(
            client.post("/v1/subscriptions/chat.empty/pull", json={"wait": 30}, headers=ann)
        )

        await eventually(lambda: owner.fetchval("select count(*) from gapless.attendance"))
        assert (await client.delete(f"/v1/keys/{made['id']}", headers=bearer(root))).status_code == 204
        answer = await waiting
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
        again: list[tuple[int, int]] = []

        async def both() -> bool:
            more = await client.post("/v1/subscriptions/chat.q/pull", json={"max": 5}, headers=bearer(root))
            again.extend((each["message"]["data"], each["attempt"]) for each in more.json()["deliveries"])
            return len(again) >= 2

        await eventually(both)
        assert sorted(again) == [(1, 2), (2, 2)]
        held = {"receipts": [kept.json()["deliveries"][0]["receipt"]]}
        (result,) = (await client.post("/v1/ack", json=held, headers=bearer(root))).json()["results"]
        assert result["status"] == "acked"
