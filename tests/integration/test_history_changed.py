"""What each face tells of a log that was taken back to an earlier moment."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import asyncpg
import gapless
import pytest

from tests.conftest import Database, Serve
from tests.integration.queueing import Host, deliveries
from tests.patience import http_client
from tests.sse import subscribe


@dataclass(frozen=True, slots=True)
class Past:
    """Where the service is, and the ids that its readers have seen of `a`, the last two of which are lost."""

    url: str
    seen: list[int]

    @property
    def gap(self) -> dict[str, object]:
        return {"reason": "history_changed", "ids": [self.seen[3], self.seen[4]]}


@pytest.fixture
async def past(serve: Serve, database: Database, owner: asyncpg.Connection) -> Past:
    """As after the promotion of a standby that lacked two messages."""
    url = (await asyncio.to_thread(serve)).url
    async with Host(url) as host:
        seen = [position["id"] for position in await host.publish("a", *range(1, 6))]
        await take_back(owner)
        await host.publish("a", "after")
    return Past(url, seen)


async def take_back(owner: asyncpg.Connection) -> None:
    await owner.execute("delete from gapless.messages where seq > 3")
    await owner.execute(
        "update gapless.channels set last_seq = 3, last_id = (select max(id) from gapless.messages)"
    )
    await owner.execute("select gapless.fence((select epoch from gapless.log))")


CHANNELS = [["a"], pytest.param(["a", "b"], marks=pytest.mark.drill), [">"]]


@pytest.mark.parametrize("channels", CHANNELS)
async def test_a_live_reader_is_told_which_ids_it_may_have_seen(past: Past, channels: list[str]) -> None:
    async with subscribe(past.url, *channels, after=past.seen[4]) as stream:
        first = await stream.block()
        assert first is not None
        assert first.event == "gap"
        assert first.json == past.gap | ({"channel": "a"} if channels == ["a"] else {})
        assert [m["data"] for m in await stream.messages(1)] == ["after"]
    async with subscribe(past.url, *channels, after=past.seen[2]) as stream:
        assert [block.event for block in await stream.until("ready")] == ["", "ready"]


async def test_a_page_of_history_tells_it_too(past: Past) -> None:
    path = f"{past.url}/v1/channels/a/messages"
    async with http_client() as client:
        lost = await client.get(path, params={"after": past.seen[4]})
        assert (lost.json()["gap"], [m["data"] for m in lost.json()["messages"]]) == (past.gap, ["after"])
        for accept in ("application/json", "application/x-ndjson", "application/cloudevents-batch+json"):
            lost = await client.get(path, params={"after": past.seen[4]}, headers={"Accept": accept})
            assert lost.headers["Gapless-History-Changed"] == f"{past.seen[3]}-{past.seen[4]}"
            kept = await client.get(path, params={"after": past.seen[2]}, headers={"Accept": accept})
            assert "Gapless-History-Changed" not in kept.headers
        assert "gap" not in (await client.get(path, params={"after": past.seen[2]})).json()


async def test_the_client_raises_once_and_goes_on(past: Past) -> None:
    async with gapless.AsyncClient(past.url) as client:
        subscription = client.subscribe("a", start=past.seen[4])
        with pytest.raises(gapless.HistoryLost, match="the history of a has changed") as told:
            await anext(subscription)
        assert told.value.gap is not None
        assert told.value.gap.ids == (past.seen[3], past.seen[4])
        assert (await anext(subscription)).data == "after"
        await subscription.aclose()
        (page,) = [page async for page in client.history("a", start=past.seen[4])]
        assert (page.lost, [m.data for m in page]) == ((past.seen[3], past.seen[4]), ["after"])
        history = client.iter_history("a", start=past.seen[4])
        with pytest.raises(gapless.HistoryLost):
            await anext(history)
        assert [m.data async for m in history] == ["after"]


async def test_a_member_is_told_before_its_stream_ends(serve: Serve, owner: asyncpg.Connection) -> None:
    url = (await asyncio.to_thread(serve)).url
    async with Host(url) as host:
        queue = await host.subscribe("a", ordering="none")
        seen = [position["id"] for position in await host.publish("a", *range(1, 6))]
        async with queue.consume(prefetch=10) as stream:
            await deliveries(stream, 5)
            await take_back(owner)
            gap, goodbye = await stream.until("goodbye")
            assert (gap.event, gap.json["reason"]) == ("gap", "history_changed")
            # What it may have seen: a process may read the sequence behind a fence before it reads the fence.
            first, last = gap.json["ids"]
            (position,) = await host.publish("a", 6)
            assert first == seen[3]
            assert seen[4] <= last < position["id"]
            assert goodbye.json == {"reason": "history_changed"}
            assert await stream.block() is None


@pytest.mark.parametrize("channels", CHANNELS)
async def test_a_cursor_of_a_sibling_ahead_of_this_log_is_told_and_given_all_since(
    past: Past, channels: list[str]
) -> None:
    """Another standby was promoted too, and gave it out."""
    async with Host(past.url) as host:
        (position,) = await host.publish("a", "again")
    ahead = position["id"] + 2**31
    async with subscribe(past.url, *channels, headers={"Last-Event-ID": str(ahead)}) as stream:
        gap, *messages, ready = await stream.until("ready")
        assert (gap.event, gap.json["reason"]) == ("gap", "history_changed")
        assert gap.json["ids"] == [past.seen[3], ahead]
        assert [message.json["data"] for message in messages] == ["after", "again"]
        assert ready.json["cursor"] == position["id"]
    async with http_client() as client:
        path = f"{past.url}/v1/channels/a/messages"
        page = (await client.get(path, params={"after": ahead})).json()
        assert page["gap"]["ids"] == [past.seen[3], ahead]
        assert [m["data"] for m in page["messages"]] == ["after", "again"]
        assert page["cursor"] == position["id"]
        beyond = position["id"] + 2**41
        params: list[tuple[str, str | int]] = [("channel", channel) for channel in channels]
        refused = await client.get(f"{past.url}/v1/subscribe", params=[*params, ("after", beyond)])
        assert refused.status_code == 400


async def test_the_client_goes_on_from_a_cursor_of_a_sibling(past: Past) -> None:
    async with http_client() as plain:
        last = (await plain.get(f"{past.url}/v1/channels/a/messages")).json()["cursor"]
    ahead = last + 2**31
    async with gapless.AsyncClient(past.url) as client:
        subscription = client.subscribe("a", start=ahead)
        with pytest.raises(gapless.HistoryLost):
            await anext(subscription)
        assert (await anext(subscription)).data == "after"
        assert subscription.cursor == last
        await subscription.aclose()
        (page,) = [page async for page in client.history("a", start=ahead)]
        assert (page.lost, [m.data for m in page]) == ((past.seen[3], ahead), ["after"])
        history = client.iter_history("a", start=ahead)
        with pytest.raises(gapless.HistoryLost):
            await anext(history)
        assert [m.data async for m in history] == ["after"]
