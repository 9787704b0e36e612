"""How far users have come, and what is unread, over HTTP and by the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from gapless import AsyncClient, Client, NotFound, Unread

from tests.conftest import Serve
from tests.integration.test_keys import EVERYTHING, bearer, make
from tests.patience import http_client

READING = [{"actions": ["publish", "subscribe"], "channels": ["chat.>"]}]
MODERATING = [{"actions": ["moderate"], "channels": ["chat.open"]}]


@pytest.fixture
async def client(serve: Serve) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(serve().url) as found:
        yield found


async def publish(client: httpx.AsyncClient, channel: str, count: int = 1, **more: Any) -> list[int]:
    ids = []
    for n in range(count):
        answer = await client.post(f"/v1/channels/{channel}/messages", json={"data": n, **more})
        assert answer.status_code == 201, answer.text
        ids.append(answer.json()["id"])
    return ids


async def move(client: httpx.AsyncClient, channel: str, id_: int, **more: Any) -> httpx.Response:
    name = more.pop("name", "read")
    return await client.put(f"/v1/channels/{channel}/markers/{name}", json={"id": id_, **more})


async def unread(client: httpx.AsyncClient, **asked: Any) -> dict[str, int]:
    answer = await client.get("/v1/markers", params=asked)
    assert answer.status_code == 200, answer.text
    return {each["channel"]: each["unread"] for each in answer.json()["markers"]}


async def test_what_is_unread_follows_what_happens(client: httpx.AsyncClient) -> None:
    ids = await publish(client, "room", 5)
    answer = await move(client, "room", ids[1], user="ann")
    assert answer.status_code == 200
    told = answer.json()
    assert {name: told[name] for name in ("channel", "user", "name", "id")} == {
        "channel": "room",
        "user": "ann",
        "name": "read",
        "id": ids[1],
    }
    assert await unread(client, user="ann") == {"room": 3}
    await publish(client, "room", target=ids[3], action="update")
    await publish(client, "room", target=ids[3], action="reply")
    assert await unread(client, user="ann") == {"room": 4}, "a reply is an original, an update is none"
    for _ in range(2):
        await publish(client, "room", target=ids[3], action="delete")
    await publish(client, "room", target=ids[0], action="delete")
    assert await unread(client, user="ann") == {"room": 3}
    (last,) = await publish(client, "room", target=ids[1], action="delete", through=ids[4])
    assert await unread(client, user="ann") == {"room": 1}
    page = (await client.get("/v1/markers", params={"user": "ann"})).json()
    (row,) = page["markers"]
    assert (row["id"], row["last_id"], row["last_seq"], page["has_more"]) == (ids[1], last, 11, False)
    assert await unread(client, user="ann", name="delivered") == {}
    assert await unread(client, user="bob") == {}


async def test_a_list_comes_in_pages_and_by_pattern(client: httpx.AsyncClient) -> None:
    names = [f"team.{n}" for n in range(5)] + ["other"]
    for count, name in enumerate(names):
        await publish(client, name, count + 1)
    marks = [{"channel": name, "name": "read", "user": "ann", "id": 0} for name in names]
    answer = await client.post("/v1/markers", json={"markers": marks})
    assert [each["channel"] for each in answer.json()["markers"]] == names
    assert (await client.post("/v1/markers", json=marks)).json() == answer.json(), "the array alone"
    found: dict[str, int] = {}
    cursor, has_more = 0, True
    while has_more:
        page = (await client.get("/v1/markers", params={"user": "ann", "limit": 2, "cursor": cursor})).json()
        found |= {each["channel"]: each["unread"] for each in page["markers"]}
        cursor, has_more = page["cursor"], page["has_more"]
        assert len(page["markers"]) <= 2
    assert found == {name: count + 1 for count, name in enumerate(names)}
    assert await unread(client, user="ann", pattern="team.*") == {f"team.{n}": n + 1 for n in range(5)}
    marks[-1]["channel"] = "none"
    assert (await client.post("/v1/markers", json={"markers": marks})).json()["code"] == "channel_not_found"
    for user in ("bob", "eve"):
        await move(client, "other", 1, user=user)
    readers = (await client.get("/v1/channels/other/markers/read", params={"limit": 2})).json()
    assert ([each["user"] for each in readers["markers"]], readers["has_more"]) == (["ann", "bob"], True)
    rest = {"cursor": readers["cursor"]}
    assert [
        each["user"]
        for each in (await client.get("/v1/channels/other/markers/read", params=rest)).json()["markers"]
    ] == ["eve"]


async def test_everybody_has_their_own_and_a_moderator_those_of_all(client: httpx.AsyncClient) -> None:
    root = (await make(client, "root", EVERYTHING + MODERATING))["key"]
    ann = bearer((await make(client, "ann", READING, root))["key"])
    mod = bearer((await make(client, "mod", READING + MODERATING, root))["key"])
    client.headers.update(ann)
    for channel in ("chat.open", "chat.closed"):
        await publish(client, channel, 2)
        assert (await move(client, channel, 1)).json()["user"] == "ann"
    assert await unread(client) == await unread(client, user="ann") == {"chat.open": 1, "chat.closed": 2}
    refused = [
        await move(client, "chat.open", 1, user="mod"),
        await move(client, "secret", 1),
        await client.get("/v1/markers", params={"user": "mod"}),
        await client.get("/v1/markers", params={"pattern": "secret"}),
        await client.get("/v1/channels/secret/markers/read"),
    ]
    assert [answer.status_code for answer in refused] == [403] * len(refused)
    client.headers.update(mod)
    assert await unread(client, user="ann") == {"chat.open": 1}, "where one may moderate"
    assert (await move(client, "chat.open", 1000, user="ann")).status_code == 200
    assert (await move(client, "chat.closed", 1000, user="ann")).status_code == 403
    marks = [
        {"channel": f"chat.{name}", "name": "read", "user": "ann", "id": 1} for name in ("open", "closed")
    ]
    answer = await client.post("/v1/markers", json={"markers": marks})
    assert answer.status_code == 403
    assert await unread(client, user="ann") == {"chat.open": 0}


async def test_what_no_marker_is(client: httpx.AsyncClient) -> None:
    await publish(client, "room")
    for body in (
        {"id": 1},
        {"id": -1, "user": "ann"},
        {"id": "1", "user": "ann"},
        {"id": 2**53, "user": "ann"},
        {"id": 1, "user": ""},
        {"id": 1, "user": "a\nb"},
        {"id": 1, "user": "a" * 256},
        {"id": 1, "user": "ann", "force": 1},
        {"id": 1, "user": "ann", "name": "read"},
    ):
        answer = await client.put("/v1/channels/room/markers/read", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), body
    assert (await move(client, "room", 1, user="ann", name="a..b")).status_code == 422
    assert (await move(client, "none", 1, user="ann")).json()["code"] == "channel_not_found"
    assert (await client.get("/v1/channels/none/markers/read")).json()["code"] == "channel_not_found"
    assert (await client.get("/v1/channels/room/markers/read")).json()["markers"] == []
    assert (await client.get("/v1/markers")).json()["errors"][0]["field"] == "user"
    assert (await client.post("/v1/markers", json={"markers": []})).status_code == 422


async def test_the_client_marks_in_both_faces(client: httpx.AsyncClient) -> None:
    url = str(client.base_url)
    async with AsyncClient(url) as one:
        ids = [(await one.publish("room", n)).id for n in range(3)]
        marker = await one.markers.move("room", ids[1], user="ann")
        assert (marker.id, marker.user, marker.name) == (ids[1], "ann", "read")
        assert (await one.markers.move("room", ids[0], user="ann")).id == ids[1]
        assert (await one.markers.move("room", ids[0], user="ann", force=True)).id == ids[0]
        (moved,) = await one.markers.move_all([("room", ids[2])], user="bob")
        found = [each async for each in one.markers.unread("*", user="ann")]
        assert found == [Unread("room", ids[0], 2, ids[2], 3)]
        assert [(each.user, each.id) async for each in one.markers.of("room", page_size=1)] == [
            ("ann", ids[0]),
            ("bob", moved.id),
        ]
        with pytest.raises(NotFound):
            await one.markers.move("none", 1, user="ann")

    def blocking() -> int:
        with Client(url) as two:
            two.markers.move("room", ids[2], user="ann")
            return next(iter(two.markers.unread(user="ann"))).unread

    assert await asyncio.to_thread(blocking) == 0
