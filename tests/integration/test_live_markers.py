"""Markers that move, told live: to those who asked, of channels that they may read, on every host."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.conftest import Serve
from tests.integration.conftest import Hosts
from tests.integration.test_keys import EVERYTHING, bearer, make
from tests.integration.test_presence import following
from tests.patience import http_client
from tests.sse import publish, subscribe


@pytest.fixture
def room() -> str:
    """A name of its own for each test: they share a service."""
    return f"marks.{uuid.uuid4().hex[:10]}"


async def move(url: str, channel: str, id_: int, user: str = "ann", **more: Any) -> dict[str, Any]:
    """Moves the marker `read`; the answer."""
    async with http_client() as client:
        body = {"id": id_, "user": user, **more}
        answer = await client.put(f"{url}/v1/channels/{channel}/markers/read", json=body)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told


async def test_readers_of_both_hosts_are_told(both_hosts: Hosts, room: str) -> None:
    one, two = both_hosts.urls
    ids = [place["id"] for place in await publish(one, room, 0, 1)]
    ways: dict[str, dict[str, Any]] = {
        "channel": {},
        "filter": {"type": "other"},
        "cloudevents": {"headers": {"Accept": "text/event-stream, application/cloudevents+json"}},
    }
    for url in (one, two):
        for way in ways.values():
            async with (
                subscribe(url, room, markers="true", **way) as stream,
                subscribe(url, "marks.*", f"{room}.b", markers="true") as several,
                following(url, room, markers=True) as frames,
                following(url, "mine", selection={"channel": [room, "x.y"]}, markers=True) as named,
            ):
                for reader in (stream, several):
                    await reader.until("ready")
                told = [await move(one, room, id_) for id_ in ids]
                assert [each["id"] for each in told] == ids
                for marker in told:
                    assert set(marker) == {"channel", "user", "name", "id", "updated_at"}
                    for reader in (stream, several):
                        block = await reader.block()
                        assert block is not None
                        assert (block.event, block.id, block.json) == ("marker", None, marker)
                    assert await frames.push("marker") == {"channel": room, "marker": marker}
                    assert await named.push("marker") == {"channel": "mine", "marker": marker}
                await move(one, room, 0, force=True)


async def test_who_did_not_ask_gets_messages_only(both_hosts: Hosts, room: str) -> None:
    one, two = both_hosts.urls
    (first,) = await publish(one, room, 0)
    async with (
        subscribe(two, room) as stream,
        subscribe(two, room, markers="false") as declined,
        subscribe(two, room, markers="true") as asked,
        following(two, room) as frames,
    ):
        for reader in (stream, declined, asked):
            await reader.until("ready")
        await move(one, room, first["id"])
        assert [block.event for block in await asked.until("marker")] == ["marker"]
        (last,) = await publish(one, room, 1)
        for reader in (stream, declined, asked):
            block = await reader.block()
            assert block is not None
            assert (block.event, block.id) == ("", str(last["id"]))
        assert (await frames.push("pub"))["pub"]["id"] == last["id"]
        assert not any("marker" in push for push in frames.pushes)


async def test_only_what_moved_is_told(both_hosts: Hosts, room: str) -> None:
    one, _ = both_hosts.urls
    ids = [place["id"] for place in await publish(one, room, 0, 1, 2)]
    async with subscribe(one, room, markers="true") as stream, http_client() as client:
        await stream.until("ready")
        for id_ in (ids[1], ids[1], ids[0]):
            assert (await move(one, room, id_))["id"] == ids[1]
        assert (await move(one, room, ids[0], force=True))["id"] == ids[0]
        marks = [
            {"channel": room, "name": name, "user": "ann", "id": ids[2]} for name in ("read", "delivered")
        ]
        answer = await client.post(f"{one}/v1/markers", json={"markers": marks})
        assert answer.status_code == 200
        refused = await client.post(
            f"{one}/v1/markers", json={"markers": [*marks, {**marks[0], "channel": f"{room}.none"}]}
        )
        assert refused.json()["code"] == "channel_not_found"
        await publish(one, room, "last")
        told: list[tuple[str, int]] = []
        while (block := await stream.block()) is not None and block.event == "marker":
            told.append((block.json["name"], block.json["id"]))
        assert told[:2] == [("read", ids[1]), ("read", ids[0])]
        assert sorted(told[2:]) == [("delivered", ids[2]), ("read", ids[2])]


async def test_a_reader_is_told_of_what_it_may_read(serve: Serve) -> None:
    url = serve().url
    async with http_client(url) as client:
        root = (await make(client, "root", [*EVERYTHING, {"actions": ["moderate"], "channels": [">"]}]))[
            "key"
        ]
        reads = [{"actions": ["subscribe"], "channels": ["chat.>"]}]
        ann = bearer((await make(client, "ann", reads, root))["key"])
        client.headers.update(bearer(root))
        for channel in ("secret", "chat.open"):
            path = f"/v1/channels/{channel}"
            assert (await client.post(f"{path}/messages", json={"data": 1})).status_code == 201
        refused = await client.get(
            "/v1/subscribe", params={"channel": "secret", "markers": "true"}, headers=ann
        )
        assert refused.status_code == 403
        async with subscribe(url, ">", markers="true", headers=ann) as stream:
            await stream.until("ready")
            for channel in ("secret", "chat.open"):
                path = f"/v1/channels/{channel}/markers/read"
                assert (await client.put(path, json={"id": 1, "user": "bob"})).status_code == 200
            block = (await stream.until("marker"))[-1]
            assert (block.json["channel"], block.json["user"]) == ("chat.open", "bob")


@pytest.mark.parametrize("value", ["yes", ""])
async def test_what_is_no_switch_is_refused(both_hosts: Hosts, value: str) -> None:
    query = {"channel": "a", "markers": value}
    async with http_client() as client:
        answer = await client.get(f"{both_hosts.urls[0]}/v1/subscribe", params=query)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
