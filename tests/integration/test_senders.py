"""In whose name a message is sent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import websockets
from gapless import AsyncClient, Forbidden

from tests.conftest import Serve
from tests.integration.test_keys import EVERYTHING, bearer, make
from tests.patience import http_client

WRITING = [{"actions": ["publish", "subscribe"], "channels": ["chat.>"]}]
MODERATING = [{"actions": ["moderate"], "channels": ["chat.open"]}]
IN_ANOTHER_NAME = {"data": 1, "sender": "bob"}


@pytest.fixture
async def client(serve: Serve) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(serve().url) as found:
        yield found


async def senders(client: httpx.AsyncClient, channel: str) -> list[str | None]:
    answer = await client.get(f"/v1/channels/{channel}/messages")
    assert answer.status_code == 200, answer.text
    return [each.get("sender") for each in answer.json()["messages"]]


async def ways(client: httpx.AsyncClient, channel: str, message: dict[str, Any]) -> list[httpx.Response]:
    """The message by every request that publishes."""
    path, addressed = f"/v1/channels/{channel}/messages", {"channel": channel, **message}
    return [
        await client.post(path, json=message),
        await client.post(path, json=[{"data": 0}, message]),
        await client.post("/v1/messages", json={"messages": [addressed]}),
        await client.post("/v1/transactions", json={"publish": [addressed]}),
        await client.post(path, json={**message, "ephemeral": True}),
        await client.post(path, json={**message, "delay": 3600}),
    ]


async def over_websocket(client: httpx.AsyncClient, key: str, message: dict[str, Any]) -> dict[str, Any]:
    address = str(client.base_url).replace("http", "ws", 1) + "/v1/ws"
    async with websockets.connect(address, additional_headers=bearer(key)) as socket:
        await socket.send(json.dumps({"id": 1, "connect": {}}))
        await socket.recv()
        await socket.send(json.dumps({"id": 2, "publish": message}))
        answer: dict[str, Any] = json.loads(await socket.recv())
        return answer


async def test_only_a_moderator_sends_in_the_name_of_others(client: httpx.AsyncClient) -> None:
    root = (await make(client, "root", EVERYTHING + MODERATING))["key"]
    ann = (await make(client, "ann", WRITING, root))["key"]
    mod = (await make(client, "mod", WRITING + MODERATING, root))["key"]
    client.headers.update(bearer(ann))
    for answer in await ways(client, "chat.open", IN_ANOTHER_NAME):
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert "moderate on channel chat.open" in answer.json()["detail"]
    refused = await over_websocket(client, ann, {"channel": "chat.open", **IN_ANOTHER_NAME})
    assert refused["error"]["code"] == 103
    answers = await ways(client, "chat.open", {"data": 1, "sender": "ann"})
    assert [answer.status_code for answer in answers] == [201, 201, 201, 201, 202, 202], "one's own name"
    assert await senders(client, "chat.open") == ["ann"] * 5, "and nothing of what was refused"

    client.headers.update(bearer(mod))
    for answer in await ways(client, "chat.closed", IN_ANOTHER_NAME):
        assert answer.status_code == 403, "where one may not moderate"
    answers = await ways(client, "chat.open", IN_ANOTHER_NAME)
    assert [answer.status_code for answer in answers] == [201, 201, 201, 201, 202, 202]
    await over_websocket(client, mod, {"channel": "chat.open", **IN_ANOTHER_NAME})
    assert (await senders(client, "chat.open"))[5:] == ["bob", "mod", "bob", "bob", "bob", "bob"]


async def test_who_is_named_may_change_what_was_sent_in_that_name(client: httpx.AsyncClient) -> None:
    root = (await make(client, "root", EVERYTHING + MODERATING))["key"]
    bob = (await make(client, "bob", WRITING, root))["key"]
    async with AsyncClient(str(client.base_url), token=root) as moderator:
        sent = await moderator.publish("chat.open", "hello", sender="bob")
    async with AsyncClient(str(client.base_url), token=bob) as named:
        await named.publish("chat.open", "hello!", target=sent.id, action="update")
        with pytest.raises(Forbidden):
            await named.publish("chat.open", 1, sender="ann")


async def test_without_credentials_everybody_names_whom_they_like(client: httpx.AsyncClient) -> None:
    for sender in ("bob", None, "Jürgen ☃"):
        path = "/v1/channels/room/messages"
        assert (await client.post(path, json={"data": 1, "sender": sender})).status_code == 201
    assert await senders(client, "room") == ["bob", None, "Jürgen ☃"]
    for wrong in ("", "a\nb", "x" * 256, 7):
        answer = await client.post(path, json={"data": 1, "sender": wrong})
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["field"] == "sender"
