"""Where a subscription over WebSocket begins, as its `selection` says: the starts of a stream of events."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from tests.integration.frames import Frames
from tests.integration.test_websocket import first_seq, http, opened, publish
from tests.patience import eventually


@pytest.fixture
def channel() -> str:
    """A name of its own for each test: they share a service."""
    return f"ws.{uuid.uuid4().hex[:10]}"


async def history(client: Frames, name: str) -> tuple[list[int], int]:
    """The ids that come to this subscription before `ready`, and its cursor."""
    while True:
        ready = await client.push("ready")
        if ready["channel"] == name:
            break
        client.pushes.append(ready)
    ids = [push["pub"]["id"] for push in client.pushes if push["channel"] == name and "pub" in push]
    return ids, ready["ready"]["cursor"]


async def test_each_start_is_that_of_a_stream_of_events(server_url: str, channel: str) -> None:
    """Of one channel, and of several: `last` counts in each of them."""
    a, b = f"{channel}.a", f"{channel}.b"
    old = [one["id"] for one in publish(server_url, a, *range(3)) + publish(server_url, b, *range(2))]
    new = publish(server_url, b, *range(3))
    ids = old + [one["id"] for one in new]
    starts: dict[str, tuple[dict[str, Any], list[int], list[int]]] = {
        "last": ({"last": 2}, ids[1:3] + ids[6:], ids[1:3]),
        "all": ({"last": 1000}, ids, ids[:3]),
        "time": ({"since": new[0]["created_at"]}, ids[5:], []),
        "age": ({"since": "1h"}, ids, ids[:3]),
        "none": ({"since": "2999-01-01T00:00:00Z"}, [], []),
        "earliest": ({"from": "earliest"}, ids, ids[:3]),
        "latest": ({"from": "latest"}, [], []),
    }
    async with opened(server_url) as client:
        for name, (start, of_both, of_one) in starts.items():
            for chosen, expected in (([f"{channel}.*"], of_both), ([a, b], of_both), ([a], of_one)):
                selection = {"channel": chosen, **start}
                said = (await client.ask("subscribe", channel=name, selection=selection))["subscribe"]
                assert set(said) == {"recoverable", "positioned", "epoch", "offset"}
                found, cursor = await history(client, name)
                assert found == expected, (start, chosen)
                # Its offset is right before what comes, so a client that goes on there misses nothing.
                assert said["offset"] <= cursor
                if expected:
                    assert all((one <= said["offset"]) == (one < expected[0]) for one in ids)
                await client.ask("unsubscribe", channel=name)
                client.pushes.clear()


@pytest.mark.parametrize("start", [{"last": 2}, {"since": "1h"}, {"from": "earliest"}])
async def test_who_comes_back_goes_on_at_its_position(
    server_url: str, channel: str, start: dict[str, Any]
) -> None:
    """Also with the same selection, as a browser that comes back has its first query."""
    ids = [one["id"] for one in publish(server_url, channel, *range(5))]
    asked = {"channel": "mine", "selection": {"channel": [channel], **start}}
    async with opened(server_url) as client:
        first = (await client.ask("subscribe", **asked))["subscribe"]
        seen = (await client.push())["pub"]
        client.drop()
    assert seen["offset"] == seen["id"]
    for offset in (first["offset"], seen["offset"]):
        async with opened(server_url) as client:
            position = {"recover": True, "offset": offset, "epoch": first["epoch"], "flag": 2}
            again = (await client.ask("subscribe", **asked, **position))["subscribe"]
            assert again.items() >= {"recovered": True, "was_recovering": True, "offset": offset}.items()
            assert (await history(client, "mine"))[0] == [one for one in ids if one > offset]


async def test_subscriptions_of_a_connect_have_starts_too(server_url: str, channel: str) -> None:
    ids = [one["id"] for one in publish(server_url, channel, *range(5))]
    subs = {
        "newest": {"selection": {"channel": [channel], "last": 1}},
        "all": {"selection": {"channel": [channel], "since": "1h"}},
        "both": {"selection": {"channel": [channel], "since": "1h", "last": 1}},
    }
    async with opened(server_url, connected=False) as client:
        answer = (await client.ask("connect", subs=subs))["connect"]["subs"]
        assert set(answer) == {"newest", "all"}
        assert answer["newest"]["offset"] == ids[3]
        assert (await history(client, "newest"))[0] == ids[4:]
        assert (await history(client, "all"))[0] == ids


async def test_retention_is_told_as_in_a_stream_of_events(server_url: str, channel: str) -> None:
    http("PUT", f"{server_url}/v1/channels/{channel}", json={"retention": {"max_messages": 3}})
    ids = [one["id"] for one in publish(server_url, channel, *range(10))]
    await eventually(lambda: first_seq(server_url, channel) == 8)
    async with opened(server_url) as client:
        for start, gap in (({"last": 5}, False), ({"since": "1h"}, True), ({"from": "earliest"}, True)):
            await client.ask("subscribe", channel="mine", selection={"channel": [channel], **start})
            assert (await history(client, "mine"))[0] == ids[7:]
            told = [push["gap"] for push in client.pushes if "gap" in push]
            assert told == [{"channel": channel, "first_seq": 8, "missed": 7}] * gap
            await client.ask("unsubscribe", channel="mine")
            client.pushes.clear()


@pytest.mark.parametrize(
    ("start", "field"),
    [
        ({"last": 1, "since": "1h"}, "selection.last and selection.since"),
        ({"last": 1, "from": "latest", "recover": True}, "selection.last and selection.from"),
        ({"last": 0}, "selection.last"),
        ({"last": 1001}, "selection.last"),
        ({"last": 10**30}, "selection.last"),
        ({"last": "3"}, ""),
        ({"since": "soon"}, "selection.since"),
        ({"since": "2026-11-20T12:00:00"}, "selection.since"),
        ({"since": "9" * 5000 + "d"}, "selection.since"),
        ({"since": 10}, ""),
        ({"from": "middle"}, ""),
        ({"after": 7}, ""),
    ],
)
async def test_what_is_no_start_is_refused_and_the_connection_stays(
    server_url: str, start: dict[str, Any], field: str
) -> None:
    recover = start.pop("recover", False)
    async with opened(server_url) as client:
        asked = {"channel": "s", "selection": {"channel": ["a"], **start}, "recover": recover}
        error = (await client.ask("subscribe", **asked))["error"]
        assert error["code"] == 107
        assert field in error["message"]
        assert "subscribe" in await client.ask("subscribe", channel="s", selection={"channel": ["a"]})


async def test_a_start_and_what_is_published_meanwhile_have_no_seam(server_url: str, channel: str) -> None:
    total = 60

    async def write() -> None:
        for number in range(total):
            await asyncio.to_thread(publish, server_url, channel, number)

    writing = asyncio.create_task(write())
    async with opened(server_url) as client:
        for number in range(10):
            selection = {"channel": [channel], "since": "1h"}
            await client.ask("subscribe", channel=str(number), selection=selection)
            await asyncio.sleep(0.01)
        seen: dict[str, list[int]] = {str(number): [] for number in range(10)}
        while any(len(seqs) < total for seqs in seen.values()):
            push = await client.push()
            seen[push["channel"]].append(push["pub"]["seq"])
    await writing
    assert all(seqs == list(range(1, total + 1)) for seqs in seen.values())
