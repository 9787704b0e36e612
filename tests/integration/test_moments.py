"""The earliest and the latest times that a client can write, wherever a request has one: each is taken or
refused, and none is a failure of the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from tests.conftest import Serve
from tests.integration.test_keys import EVERYTHING, bearer
from tests.patience import eventually, http_client

FIRST = ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "0001-01-01T23:59:59-14:00")
LAST = ("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-14:00", "9999-12-31T00:00:00+14:00")
AGES = ("999999999d", "999999999s")


@pytest.fixture
async def client(server_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(server_url) as made:
        yield made


async def test_what_was_due_long_ago_is_published_at_once(client: httpx.AsyncClient) -> None:
    path = "/v1/channels/moments.first/messages"
    bodies: list[Any] = [{"data": text, "deliver_at": text} for text in FIRST]
    for body in (*bodies, bodies):
        answer = await client.post(path, json=body)
        assert answer.status_code == 202, answer.text
        told = answer.json()
        for one in told["messages"] if isinstance(body, list) else [told]:
            assert datetime.fromisoformat(one["deliver_at"]) == datetime(1970, 1, 1, tzinfo=UTC)

    async def published() -> bool:
        found = (await client.get(path)).json().get("messages", [])
        return sorted(message["data"] for message in found) == sorted(FIRST * 2)

    await eventually(published)


@pytest.mark.parametrize("text", [*FIRST, *LAST, *AGES])
async def test_every_time_is_taken_or_refused(client: httpx.AsyncClient, text: str) -> None:
    channel, queue = "/v1/channels/moments.read", "/v1/subscriptions/moments.read"
    await client.post(f"{channel}/messages", json={"data": 1})
    await client.delete(queue)
    statuses = [
        (await client.get(f"{channel}/messages", params={"since": text})).status_code,
        (await client.get(f"{channel}/messages", params={"since": text, "view": "latest"})).status_code,
        (await client.post("/v1/dead-letters/purge", json={"older_than": text})).status_code,
        (await client.put(queue, json={"channels": ["moments.read"], "start": text})).status_code,
    ]
    await client.put(queue, json={"channels": ["moments.read"]})
    statuses.append((await client.post(f"{queue}/seek", json={"to": text})).status_code)
    statuses.append((await client.get(queue)).status_code)
    asked = {"channel": "moments.read", "since": text}
    async with client.stream("GET", "/v1/subscribe", params=asked) as stream:
        statuses.append(stream.status_code)
    assert set(statuses) <= {200, 201, 422}, statuses


async def test_keys_end_at_any_time(serve: Serve) -> None:
    service = serve()
    async with http_client(service.url) as client:
        root = (await client.post("/v1/keys", json={"name": "root", "grants": EVERYTHING})).json()["key"]
        for text, status in (*((text, 422) for text in FIRST), *((text, 201) for text in LAST)):
            body = {"name": "far", "grants": EVERYTHING, "expires_at": text}
            made = await client.post("/v1/keys", json=body, headers=bearer(root))
            assert made.status_code == status, (text, made.text)
            if status == 201:
                who = await client.get("/v1/whoami", headers=bearer(made.json()["key"]))
                assert (who.status_code, who.json()["expires_at"]) == (200, made.json()["expires_at"])
                listed = await client.get("/v1/keys", headers=bearer(made.json()["key"]))
                assert listed.status_code == 200
