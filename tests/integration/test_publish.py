"""Publishing over HTTP: what is answered, what is stored, what a repeat does."""

from __future__ import annotations

import asyncio
import base64
from itertools import count
from typing import Any

import httpx
import pytest

from load.relay import connected
from tests.patience import http_client

_numbers = count(1)


@pytest.fixture
async def client(server_url: str):  # type: ignore[no-untyped-def]
    async with http_client(server_url) as made:
        yield made


@pytest.fixture
def channel() -> str:
    """A channel that no other test uses."""
    return f"publish.{next(_numbers)}"


async def stored(client: httpx.AsyncClient, channel: str) -> list[dict[str, Any]]:
    answer = await client.get(f"/v1/channels/{channel}/messages", params={"limit": 1000})
    if answer.status_code == 404:
        return []
    messages: list[dict[str, Any]] = answer.json()["messages"]
    return messages


async def test_one_message(client: httpx.AsyncClient, channel: str) -> None:
    body = {"data": {"a": [1, None]}, "type": "made", "key": "k", "headers": {"h": "v"}, "ttl": 60}
    answer = await client.post(f"/v1/channels/{channel}/messages", json=body)
    assert answer.status_code == 201
    position = answer.json()
    assert set(position) == {"id", "channel", "seq", "created_at"}
    [message] = await stored(client, channel)
    assert message.pop("expires_at") > message["created_at"]
    assert message == position | {"data": {"a": [1, None]}, "type": "made", "key": "k", "headers": {"h": "v"}}
    one = await client.get(f"/v1/channels/{channel}/messages/{position['id']}")
    assert one.json()["seq"] == 1


async def test_an_array_is_atomic_and_in_order(client: httpx.AsyncClient, channel: str) -> None:
    body = [{"data": i} for i in range(1000)]
    answer = (await client.post(f"/v1/channels/{channel}/messages", json=body)).json()["messages"]
    assert [p["seq"] for p in answer] == list(range(1, 1001))
    ids = [p["id"] for p in answer]
    assert ids == sorted(ids)
    bad = [{"data": 1}, {"data": 2, "type": ""}]
    refused = await client.post(f"/v1/channels/{channel}/messages", json=bad)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "[1].type"
    assert len(await stored(client, channel)) == 1000


async def test_several_channels_at_once(client: httpx.AsyncClient, channel: str) -> None:
    body = {"messages": [{"channel": f"{channel}.{i % 3}", "data": i} for i in range(9)]}
    answer = (await client.post("/v1/messages", json=body)).json()["messages"]
    assert [p["seq"] for p in answer] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert [p["channel"] for p in answer] == [m["channel"] for m in body["messages"]]
    assert [m["data"] for m in await stored(client, f"{channel}.1")] == [1, 4, 7]


async def test_a_key_replays_the_first_answer(client: httpx.AsyncClient, channel: str) -> None:
    key = {"Idempotency-Key": f"key of {channel}"}
    path = f"/v1/channels/{channel}/messages"
    answers = await asyncio.gather(*[client.post(path, json={"data": 1}, headers=key) for _ in range(50)])
    assert {a.status_code for a in answers} == {201}
    assert len({a.text for a in answers}) == 1
    assert sum("idempotent-replayed" not in a.headers for a in answers) == 1
    assert {a.headers.get("idempotent-replayed", "true") for a in answers} == {"true"}
    other = await client.post(path, json={"data": 2}, headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    elsewhere = await client.post(f"/v1/channels/{channel}.x/messages", json={"data": 1}, headers=key)
    assert elsewhere.status_code == 422
    assert len(await stored(client, channel)) == 1


async def test_a_batch_is_replayed_whole(client: httpx.AsyncClient, channel: str) -> None:
    key = {"Idempotency-Key": f"batch of {channel}"}
    body = {"messages": [{"channel": f"{channel}.{i}", "data": i} for i in range(3)]}
    first = await client.post("/v1/messages", json=body, headers=key)
    again = await client.post("/v1/messages", json=body, headers=key)
    assert first.text == again.text
    assert again.headers["idempotent-replayed"] == "true"


async def test_expected_last_seq(client: httpx.AsyncClient, channel: str) -> None:
    path = f"/v1/channels/{channel}/messages"

    async def publish(expected: int) -> httpx.Response:
        return await client.post(path, json={"data": 1}, headers={"Expected-Last-Seq": str(expected)})

    assert (await publish(1)).json()["code"] == "head_mismatch"
    answers = await asyncio.gather(*[publish(0) for _ in range(20)])
    assert sorted(a.status_code for a in answers) == [201] + [409] * 19
    assert (await publish(1)).status_code == 201
    assert [m["seq"] for m in await stored(client, channel)] == [1, 2]


async def test_a_refused_expectation_leaves_its_key_free(client: httpx.AsyncClient, channel: str) -> None:
    path, key = f"/v1/channels/{channel}/messages", f"free {channel}"
    headers = {"Idempotency-Key": key, "Expected-Last-Seq": "1"}
    assert (await client.post(path, json={"data": 1}, headers=headers)).status_code == 409
    headers["Expected-Last-Seq"] = "0"
    assert (await client.post(path, json={"data": 1}, headers=headers)).status_code == 201


async def test_binary_data(client: httpx.AsyncClient, channel: str) -> None:
    raw = bytes(range(256))
    body = {"data_base64": base64.b64encode(raw).decode()}
    assert (await client.post(f"/v1/channels/{channel}/messages", json=body)).status_code == 201
    [message] = await stored(client, channel)
    assert "data" not in message
    assert base64.b64decode(str(message["data_base64"])) == raw


async def test_data_comes_back_as_it_was_sent(client: httpx.AsyncClient, channel: str) -> None:
    sent = '{"data": {"z": 1.10, "a": 9007199254740993,\n "text": "é\\u2028\\ud83d\\ude00"}}'
    headers = {"Content-Type": "application/json"}
    answer = await client.post(f"/v1/channels/{channel}/messages", content=sent, headers=headers)
    assert answer.status_code == 201
    page = (await client.get(f"/v1/channels/{channel}/messages")).text
    assert '{"z": 1.10, "a": 9007199254740993,  "text": "é\\u2028\\ud83d\\ude00"}' in page


async def test_cloudevents_in_both_modes(client: httpx.AsyncClient, channel: str) -> None:
    path = f"/v1/channels/{channel}/messages"
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "made", "data": {"a": 1}}
    structured = {"Content-Type": "application/cloudevents+json"}
    assert (await client.post(path, json=event, headers=structured)).status_code == 201
    binary = {
        "Content-Type": "application/json",
        "ce-specversion": "1.0",
        "ce-id": "2",
        "ce-source": "/s",
        "ce-type": "made",
    }
    assert (await client.post(path, json={"a": 2}, headers=binary)).status_code == 201
    accept = {"Accept": "application/cloudevents-batch+json"}
    events = (await client.get(path, headers=accept)).json()
    assert [(e["id"], e["type"], e["data"]) for e in events] == [
        ("1", "made", {"a": 1}),
        ("2", "made", {"a": 2}),
    ]


async def test_a_client_that_leaves_half_way_harms_nobody(client: httpx.AsyncClient, channel: str) -> None:
    host, port = client.base_url.host, client.base_url.port or 80
    body = b'{"data":1}'
    request = (
        f"POST /v1/channels/{channel}/messages HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    for cut in range(1, 200):
        async with connected(host, port) as (_, writer):
            writer.write(request if cut % 2 else request[: -cut % len(request)])
            await writer.drain()
    answer = await client.post(f"/v1/channels/{channel}/messages", json={"data": "end"})
    assert answer.status_code == 201
    seqs = [m["seq"] for m in await stored(client, channel)]
    # What was whole when its sender left may be committed after this answer, and is dense all the same.
    assert seqs == list(range(1, len(seqs) + 1))
