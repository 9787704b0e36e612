"""Live subscriptions from outside: where they start, what they say, what they leave out."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import asyncpg
import pytest

from tests.integration.queueing import Host
from tests.patience import eventually, http_client
from tests.sse import publish, subscribe

_numbers = count(1)
LOOKED = """
select exists (select from pg_stat_activity
    where datname = current_database() and application_name = 'gapless pages'
    and query like '%from gapless.fences order by number%' and query_start > $1 and state = 'idle')
"""
"""A page connection has looked at heads, and then whether the history is still the same."""


@pytest.fixture
def name() -> str:
    """A channel prefix that no other test uses."""
    return f"subscribe{next(_numbers)}"


def texts(messages: list[dict[str, object]]) -> list[object]:
    return [m["data"] for m in messages]


async def test_headers_and_first_block(server_url: str, name: str) -> None:
    await publish(server_url, name, 1)
    async with subscribe(server_url, name, from_="earliest") as stream:
        assert stream.response.headers["content-type"] == "text/event-stream"
        assert stream.response.headers["cache-control"] == "no-cache, no-transform"
        assert stream.response.headers["x-accel-buffering"] == "no"
        assert "x-request-id" in stream.response.headers
        first = await stream.block()
        assert first.retry == "1000"
        assert (first.event, first.json["data"]) == ("", 1)
        ready = await stream.block()
        assert (ready.event, ready.retry) == ("ready", None)
        assert ready.id == str(ready.json["cursor"]) == first.id


async def test_latest_is_the_default(server_url: str, name: str) -> None:
    await publish(server_url, name, "before")
    async with subscribe(server_url, name) as stream:
        assert [b.event for b in await stream.until("ready")] == ["ready"]
        await publish(server_url, name, "after")
        assert texts(await stream.messages(1)) == ["after"]


@pytest.mark.parametrize("channels", [1, 2], ids=["one channel", "a set"])
async def test_start_positions(server_url: str, name: str, channels: int) -> None:
    names = [f"{name}.{i}" for i in range(channels)]
    positions = [(await publish(server_url, names[i % channels], i))[0] for i in range(6)]

    async def read(**query: Any) -> list[object]:
        async with subscribe(server_url, *names, **query) as stream:
            return [b.json["data"] for b in (await stream.until("ready"))[:-1]]

    assert await read(from_="earliest") == [0, 1, 2, 3, 4, 5]
    assert await read(after=0) == [0, 1, 2, 3, 4, 5]
    assert await read(after=positions[2]["id"]) == [3, 4, 5]
    assert await read(after=positions[2]["id"], headers={"Last-Event-ID": str(positions[4]["id"])}) == [5]
    assert await read(from_="earliest", lastEventId=positions[3]["id"]) == [4, 5]
    both = {"headers": {"Last-Event-ID": str(positions[4]["id"])}, "lastEventId": positions[2]["id"]}
    assert await read(last=1, **both) == [5]
    assert await read(last=1) == [5 - i for i in reversed(range(channels))]
    assert await read(last=1000) == [0, 1, 2, 3, 4, 5]
    assert await read(since="1h") == [0, 1, 2, 3, 4, 5]
    assert await read(since=positions[3]["created_at"]) == [3, 4, 5]
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    assert await read(since=tomorrow) == []
    assert await read(from_="latest") == []


async def test_the_cursor_of_ready_loses_nothing(server_url: str, name: str) -> None:
    async with subscribe(server_url, f"{name}.>") as stream:
        ready = (await stream.until("ready"))[-1]
    await publish(server_url, f"{name}.new", "in between")
    async with subscribe(server_url, f"{name}.>", headers={"Last-Event-ID": ready.id}) as stream:
        assert texts(await stream.messages(1)) == ["in between"]


async def test_a_pattern_follows_channels_that_appear_later(server_url: str, name: str) -> None:
    async with (
        subscribe(server_url, f"{name}.*.x") as one_token,
        subscribe(server_url, f"{name}.>") as all_below,
        subscribe(server_url, f"{name}.later.x") as exact,
    ):
        for stream in (one_token, all_below, exact):
            await stream.until("ready")
        for channel in (f"{name}.later.x", f"{name}.later.y", f"{name}.deep.er.x", name):
            await publish(server_url, channel, channel)
        await publish(server_url, f"{name}.later.x", "end")
        first = f"{name}.later.x"
        assert texts(await one_token.messages(2)) == [first, "end"]
        assert texts(await all_below.messages(4)) == [
            first,
            f"{name}.later.y",
            f"{name}.deep.er.x",
            "end",
        ]
        assert texts(await exact.messages(2)) == [first, "end"]


@pytest.mark.parametrize("pattern", [False, True])
async def test_filters(server_url: str, name: str, pattern: bool) -> None:
    channel = f"{name}.>" if pattern else f"{name}.a"
    await publish(server_url, f"{name}.a", 1, type="kept", key="k")
    await publish(server_url, f"{name}.a", 2, type="other", key="k")
    async with subscribe(server_url, channel, from_="earliest", type=["kept", "also"], key="k") as stream:
        assert [b.json["data"] for b in (await stream.until("ready"))[:-1]] == [1]
        await publish(server_url, f"{name}.a", 3, type="other", key="k")
        await publish(server_url, f"{name}.a", 4, type="kept", key="l")
        await publish(server_url, f"{name}.a", 5, type="also", key="k")
        assert texts(await stream.messages(1)) == [5]


async def test_a_deep_history_comes_in_pages_then_live(server_url: str, name: str) -> None:
    async with http_client(server_url) as client:
        for begin in range(0, 3000, 1000):
            body = [{"data": i} for i in range(begin, begin + 1000)]
            assert (await client.post(f"/v1/channels/{name}.a/messages", json=body)).status_code == 201
    for channels in ([f"{name}.a"], [f"{name}.*"]):
        async with subscribe(server_url, *channels, from_="earliest") as stream:
            assert texts(await stream.messages(3000)) == list(range(3000))
            await stream.until("ready")
    await publish(server_url, f"{name}.a", 3000)
    async with subscribe(server_url, f"{name}.a", f"{name}.b", last=2) as stream:
        assert texts(await stream.messages(2)) == [2999, 3000]


async def test_ephemeral_messages_reach_live_readers_only(server_url: str, name: str) -> None:
    async with (
        subscribe(server_url, f"{name}.a") as one,
        subscribe(server_url, f"{name}.>") as many,
        subscribe(server_url, f"{name}.a", type="other") as filtered,
    ):
        for stream in (one, many, filtered):
            await stream.until("ready")
        await publish(server_url, f"{name}.a", "typing", ephemeral=True, type="typing")
        await publish(server_url, f"{name}.a", "stored", type="other")
        for stream in (one, many):
            blocks = [await stream.block(), await stream.block()]
            said = next(b for b in blocks if b.event == "ephemeral")
            assert said.id is None
            assert said.json["data"] == "typing"
            assert {"id", "seq"}.isdisjoint(said.json)
            assert {b.event for b in blocks} == {"ephemeral", ""}
        assert (await filtered.block()).event == ""
    async with http_client(server_url) as client:
        page = (await client.get(f"/v1/channels/{name}.a/messages")).json()
        assert texts(page["messages"]) == ["stored"]


async def test_cloudevents_when_asked_for(server_url: str, name: str) -> None:
    await publish(server_url, name, {"a": 1}, type="made", key="k")
    accept = {"Accept": "text/event-stream, application/cloudevents+json"}
    async with subscribe(server_url, name, from_="earliest", headers=accept) as stream:
        event = (await stream.block()).json
        assert (event["specversion"], event["type"], event["data"]) == ("1.0", "made", {"a": 1})


async def test_heartbeats_are_comments(server_url: str, name: str) -> None:
    async with subscribe(server_url, name, heartbeat=5) as stream:
        await stream.until("ready")
        reading = asyncio.create_task(stream.block())
        await eventually(lambda: stream.comments)
        assert not reading.done(), "a heartbeat is no event"
        await publish(server_url, name, 1)
        assert (await reading).json["data"] == 1


@pytest.mark.parametrize("ways", [["b"], ["a", "b"], [">"]], ids=["one channel", "a set", "a pattern"])
async def test_what_is_committed_below_a_cursor_of_other_channels_is_read(
    hosts: tuple[Host, Host],
    sql: asyncpg.Connection,
    watcher: asyncpg.Connection,
    name: str,
    ways: list[str],
) -> None:
    one, two = hosts
    (first,) = await one.publish(f"{name}.b", "before")
    transaction = sql.transaction()
    await transaction.start()
    await sql.execute("select gapless.publish($1, '\"held\"')", f"{name}.b")
    await sql.execute("select gapless_internal.append_outbox()")  # it has its id, and has not committed
    async with subscribe(one.url, f"{name}.a", after=first["id"]) as stream:
        await one.publish(f"{name}.a", "ahead")
        (ahead,) = await stream.messages(1)

    there = asyncio.Event()

    async def come_back() -> list[object]:
        async with subscribe(two.url, *(f"{name}.{way}" for way in ways), after=ahead["id"]) as stream:
            there.set()
            return texts(await stream.messages(2))

    began = await watcher.fetchval("select clock_timestamp()")
    coming = asyncio.create_task(come_back())

    async def has_come() -> bool:
        """One channel is answered at once; several wait until it is settled."""
        return there.is_set() or await watcher.fetchval(LOOKED, began)

    await eventually(has_come)
    await transaction.commit()
    await two.publish(f"{name}.b", "after")
    assert await coming == ["held", "after"]
