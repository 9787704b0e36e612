"""History and channels over HTTP: pages, lines, settings, retention."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import httpx
import pytest

from tests.patience import eventually, http_client
from tests.sse import subscribe

_numbers = count(1)


@pytest.fixture
async def client(server_url: str):  # type: ignore[no-untyped-def]
    async with http_client(server_url) as made:
        yield made


@pytest.fixture
def channel() -> str:
    """A channel that no other test uses."""
    return f"history.{next(_numbers)}"


async def fill(client: httpx.AsyncClient, channel: str, number: int, first: int = 0) -> list[dict[str, Any]]:
    body = [{"data": i, "type": f"t{i % 2}", "key": f"k{i % 3}"} for i in range(first, first + number)]
    answer = await client.post(f"/v1/channels/{channel}/messages", json=body)
    assert answer.status_code == 201, answer.text
    positions: list[dict[str, Any]] = answer.json()["messages"]
    return positions


async def test_pages_both_ways(client: httpx.AsyncClient, channel: str) -> None:
    positions = await fill(client, channel, 25)
    path = f"/v1/channels/{channel}/messages"
    for order, cursor, expected in (("asc", "after", range(25)), ("desc", "before", range(24, -1, -1))):
        found: list[int] = []
        query: dict[str, Any] = {"limit": 10, "order": order}
        while True:
            page = (await client.get(path, params=query)).json()
            found += [m["data"] for m in page["messages"]]
            query[cursor] = page["cursor"]
            if not page["has_more"]:
                break
        assert found == list(expected)
    between = {"after": positions[3]["id"], "before": positions[6]["id"]}
    page = (await client.get(path, params=between)).json()
    assert [m["data"] for m in page["messages"]] == [4, 5]
    assert page["has_more"] is False


async def test_by_type_key_and_time(client: httpx.AsyncClient, channel: str) -> None:
    await fill(client, channel, 6)
    later = await fill(client, channel, 6, first=6)
    path = f"/v1/channels/{channel}/messages"

    async def data(**query: Any) -> list[int]:
        return [m["data"] for m in (await client.get(path, params=query)).json()["messages"]]

    assert await data(type="t1") == [1, 3, 5, 7, 9, 11]
    assert await data(type=["t0", "t1"], key="k0") == [0, 3, 6, 9]
    assert await data(since=later[0]["created_at"]) == [6, 7, 8, 9, 10, 11]
    assert await data(since="1h", limit=2) == [0, 1]
    assert await data(since="2999-01-01T00:00:00Z") == []


async def test_an_empty_page_says_where_to_go_on(client: httpx.AsyncClient, channel: str) -> None:
    path = f"/v1/channels/{channel}"

    async def page(**query: Any) -> Any:
        answer = await client.get(f"{path}/messages", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    await client.put(path, json={})
    assert await page() == {"messages": [], "has_more": False, "cursor": 0}
    head = (await fill(client, channel, 3))[-1]["id"]
    for asked in ({"since": "2999-01-01T00:00:00Z"}, {"key": "none"}, {"type": "none", "after": 0}):
        assert await page(**asked) == {"messages": [], "has_more": False, "cursor": head}
    assert (await page(after=head + 9))["cursor"] == head + 9
    assert (await page(key="none", before=head))["cursor"] == 0
    assert (await page(key="none", order="desc"))["cursor"] == 0
    await client.patch(path, json={"retention": {"max_age": 1}})

    async def trimmed() -> bool:
        return not (await page())["messages"]

    await eventually(trimmed)
    assert (await page())["cursor"] == head
    await fill(client, channel, 1, first=3)
    assert [message["data"] for message in (await page(after=head))["messages"]] == [3]


async def test_lines_have_no_limit(client: httpx.AsyncClient, channel: str) -> None:
    for first in range(0, 2500, 500):
        await fill(client, channel, 500, first)
    path, accept = f"/v1/channels/{channel}/messages", {"Accept": "application/x-ndjson"}
    answer = await client.get(path, headers=accept)
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert [json.loads(line)["data"] for line in answer.text.splitlines()] == list(range(2500))
    down = await client.get(path, headers=accept, params={"order": "desc", "limit": 900})
    assert [json.loads(line)["data"] for line in down.text.splitlines()] == list(range(2499, 1599, -1))


async def test_what_is_not_there(client: httpx.AsyncClient, channel: str) -> None:
    for method, path, code in (
        ("GET", f"/v1/channels/{channel}", "channel_not_found"),
        ("GET", f"/v1/channels/{channel}/messages", "channel_not_found"),
        ("PATCH", f"/v1/channels/{channel}", "channel_not_found"),
        ("DELETE", f"/v1/channels/{channel}", "channel_not_found"),
        ("GET", f"/v1/channels/{channel}/messages/1", "channel_not_found"),
    ):
        answer = await client.request(method, path, json={} if method == "PATCH" else None)
        assert (answer.status_code, answer.json()["code"]) == (404, code)
    [position] = await fill(client, channel, 1)
    missing = await client.get(f"/v1/channels/{channel}/messages/{position['id'] + 1000000}")
    assert (missing.status_code, missing.json()["code"]) == (404, "message_not_found")


async def test_channel_settings(client: httpx.AsyncClient, channel: str) -> None:
    path = f"/v1/channels/{channel}"
    made = await client.put(path, json={"retention": {"max_age": 60, "max_messages": 5}, "message_ttl": 1.5})
    assert made.status_code == 201
    assert made.json()["retention"] == {"max_age": 60, "max_messages": 5}
    assert made.json()["message_ttl"] == 1.5
    assert (made.json()["last_seq"], made.json()["first_seq"], made.json()["last_id"]) == (0, 1, 0)
    patched = await client.patch(path, json={"retention": {"max_age": None}})
    assert patched.json()["retention"] == {"max_messages": 5}
    assert patched.json()["message_ttl"] == 1.5
    replaced = await client.put(path, json={})
    assert replaced.status_code == 200
    assert replaced.json()["retention"] == {}
    assert "message_ttl" not in replaced.json()
    await fill(client, channel, 3)
    assert (await client.get(path)).json()["last_seq"] == 3
    assert (await client.delete(path)).status_code == 204
    assert (await client.get(path)).status_code == 404
    assert [p["seq"] for p in await fill(client, channel, 2)] == [1, 2]


async def test_the_list_of_channels(client: httpx.AsyncClient, channel: str) -> None:
    names = sorted(f"{channel}.{i}.x" for i in range(7))
    for name in names:
        await fill(client, name, 1)
    found: list[str] = []
    query: dict[str, Any] = {"pattern": f"{channel}.*.x", "limit": 3}
    while True:
        page = (await client.get("/v1/channels", params=query)).json()
        found += [c["name"] for c in page["channels"]]
        if not page["has_more"]:
            assert page["cursor"] is None
            break
        query["cursor"] = page["cursor"]
    assert found == names


async def test_retention_by_count_is_announced(
    client: httpx.AsyncClient, server_url: str, channel: str
) -> None:
    path = f"/v1/channels/{channel}"
    positions = await fill(client, channel, 20)
    await client.patch(path, json={"retention": {"max_messages": 5}})

    async def trimmed() -> bool:
        return bool((await client.get(path)).json()["first_seq"] == 16)

    await eventually(trimmed)
    kept = (await client.get(f"{path}/messages")).json()["messages"]
    assert [m["seq"] for m in kept] == [16, 17, 18, 19, 20]
    expired = await client.get(f"{path}/messages", params={"after": positions[2]["id"]})
    assert (expired.status_code, expired.json()["code"]) == (410, "cursor_expired")
    for channels in ([channel], [channel, f"{channel}.other"]):
        async with subscribe(server_url, *channels, after=positions[2]["id"]) as stream:
            gap = await stream.block()
            assert gap.event == "gap"
            assert gap.json == {"channel": channel, "first_seq": 16, "missed": 12}
            assert [m["seq"] for m in await stream.messages(5)] == [16, 17, 18, 19, 20]
        async with subscribe(server_url, *channels, after=positions[15]["id"]) as stream:
            assert [b.event for b in await stream.until("ready")] == [""] * 4 + ["ready"]


async def test_retention_by_age(client: httpx.AsyncClient, channel: str) -> None:
    path = f"/v1/channels/{channel}"
    await fill(client, channel, 3)
    await client.patch(path, json={"retention": {"max_age": 1}})

    async def empty() -> bool:
        return bool((await client.get(path)).json()["first_seq"] == 4)

    await eventually(empty)
    assert (await client.get(f"{path}/messages")).json()["messages"] == []
    assert [p["seq"] for p in await fill(client, channel, 1)] == [4]


async def test_since_tells_what_retention_took_of_that_time(
    client: httpx.AsyncClient, server_url: str, channel: str
) -> None:
    path = f"/v1/channels/{channel}"
    await fill(client, channel, 10)
    await client.patch(path, json={"retention": {"max_messages": 4}})

    async def trimmed() -> bool:
        return bool((await client.get(path)).json()["first_seq"] == 7)

    await eventually(trimmed)
    async with subscribe(server_url, channel, since="1h") as stream:
        gap = await stream.block()
        assert gap.json == {"channel": channel, "first_seq": 7, "missed": 6}
        assert [m["seq"] for m in await stream.messages(4)] == [7, 8, 9, 10]


async def test_a_page_is_bounded_in_bytes(client: httpx.AsyncClient, channel: str) -> None:
    path = f"/v1/channels/{channel}/messages"
    for number in range(7):
        assert (await client.post(path, json={"data": f"{number}" * 1_000_000})).status_code == 201
    page = (await client.get(path)).json()
    assert [m["seq"] for m in page["messages"]] == [1, 2, 3, 4, 5]
    assert page["has_more"] is True
    rest = (await client.get(path, params={"after": page["cursor"]})).json()
    assert ([m["seq"] for m in rest["messages"]], rest["has_more"]) == ([6, 7], False)
    lines = (await client.get(path, headers={"Accept": "application/x-ndjson"})).text.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [1, 2, 3, 4, 5, 6, 7]
