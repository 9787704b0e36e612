"""Who is on a channel: pages, joins and leaves over both ways to read, on several hosts, without Redis."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis.asyncio

from app.embedded import EmbeddedRedis
from subscriptions.domain.presence import MAX_CHANGES
from tests.conftest import Serve
from tests.integration.conftest import Hosts
from tests.integration.frames import Frames
from tests.integration.test_faults import workers
from tests.patience import PATIENCE_S, eventually, http_client
from tests.sse import publish, subscribe

EXPIRY_S = "1"


@pytest.fixture
def channel() -> str:
    """A name of its own for each test: they share a service."""
    return f"here.{uuid.uuid4().hex[:10]}"


@asynccontextmanager
async def following(url: str, channel: str, **members: Any) -> AsyncIterator[Frames]:
    frames = await Frames.open(url)
    assert "subscribe" in await frames.ask("subscribe", channel=channel, **members)
    try:
        yield frames
    finally:
        frames.drop()


async def hears(url: str) -> bool:
    """Whether a host gets what others tell."""
    async with http_client() as client:
        return bool((await client.get(f"{url}/readyz")).json()["redis"])


async def asked(url: str, channel: str, **query: Any) -> dict[str, Any]:
    """A page. A busy Redis may answer too late for the service, which then asks to come again."""

    async def answered() -> dict[str, Any] | None:
        async with http_client() as client:
            answer = await client.get(f"{url}/v1/channels/{channel}/presence", params=query)
        if answer.status_code == 503 and answer.json()["retryable"]:
            return None
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    found: dict[str, Any] = await eventually(answered)
    return found


async def told(frames: Frames, command: str, channel: str) -> Any:
    """The same over WebSocket."""

    async def answered() -> Any:
        reply = await frames.ask(command, channel=channel)
        assert command in reply or reply["error"]["temporary"], reply
        return reply.get(command)

    return await eventually(answered)


async def shows(url: str, channel: str, count: int) -> dict[str, Any] | None:
    found = await asked(url, channel)
    return found if found["num_clients"] == count else None


async def test_all_ways_to_read_are_shown(server_url: str, channel: str) -> None:
    """WebSocket and server-sent events, also as one of several channels; patterns do not count."""
    other = f"{channel}.other"
    async with following(server_url, channel) as one, subscribe(server_url, channel, other) as two:
        await two.until("ready")
        async with (
            following(server_url, "mine", selection={"channel": [channel, f"{channel}.>"]}),
            subscribe(server_url, f"{channel}.>", "here.*") as pattern,
        ):
            await pattern.until("ready")
            found = await asked(server_url, channel)
            assert found["num_clients"] == len(found["clients"]) == 3
            assert {client["user"] for client in found["clients"]} == {None}
            assert (found["num_users"], found["has_more"], found["cursor"]) == (1, False, None)
            assert (await asked(server_url, other))["num_clients"] == 1
            listed = (await told(one, "presence", channel))["presence"]
            assert listed == {c["client"]: {"client": c["client"], "user": ""} for c in found["clients"]}
            stats = await told(one, "presence_stats", channel)
            assert stats == {"num_clients": 3, "num_users": 1}
        await eventually(lambda: shows(server_url, channel, 2))
        await one.ask("unsubscribe", channel=channel)
        await eventually(lambda: shows(server_url, channel, 1))
    await eventually(lambda: shows(server_url, channel, 0))


async def test_joins_and_leaves_are_told_to_the_others(server_url: str, channel: str) -> None:
    """And not to who joins, nor to who did not ask for them."""
    async with (
        following(server_url, channel, join_leave=True) as one,
        following(server_url, channel) as silent,
        following(server_url, "mine", selection={"channel": [channel, "x.y"]}, join_leave=True) as several,
    ):
        async with subscribe(server_url, channel, presence=True) as stream, subscribe(server_url, channel):
            await stream.until("ready")
            joined = [await one.push("join") for _ in range(4)]
            assert {push["channel"] for push in joined} == {channel}
            ids = {push["join"]["info"]["client"] for push in joined}
            found = await asked(server_url, channel)
            assert ids < {client["client"] for client in found["clients"]}
            assert len(ids) == 4
            push = await several.push("join")
            assert (push["channel"], push["join"]["channel"]) == ("mine", channel)
            four = await Frames.open(server_url)
            await four.ask("subscribe", channel=channel, join_leave=True)
            event = (await stream.until("presence"))[-1]
            while event.json["client"] in ids:
                event = (await stream.until("presence"))[-1]
            assert event.id is None
            assert event.json.items() >= {"channel": channel, "action": "join", "user": None}.items()
            assert event.json["at"].endswith("Z")
            newest = event.json["client"]
            four.drop()
            left = (await stream.until("presence"))[-1].json
            assert (left["action"], left["client"]) == ("leave", newest)
            while (await one.push("leave"))["leave"]["info"]["client"] != newest:
                pass
        while not [push for push in one.pushes if "leave" in push]:
            one.pushes.append(await one.push("leave"))
        await publish(server_url, channel, "end")
        await silent.push()
        assert not [push for push in silent.pushes if {"join", "leave", "presence"} & push.keys()]


async def test_nobody_is_told_of_itself(server_url: str, channel: str) -> None:
    opened = [await Frames.open(server_url) for _ in range(20)]
    own = [(await frames.ask("refresh"))["refresh"]["client"] for frames in opened]
    subscribing = (frames.ask("subscribe", channel=channel, join_leave=True) for frames in opened)
    await asyncio.gather(*subscribing)
    await eventually(lambda: shows(server_url, channel, 20))
    last = await Frames.open(server_url)
    await last.ask("subscribe", channel=channel)
    newest = (await last.ask("refresh"))["refresh"]["client"]
    for frames, client in zip(opened, own, strict=True):
        seen = []
        while newest not in seen:
            seen.append((await frames.push("join"))["join"]["info"]["client"])
        assert client not in seen
        frames.drop()
    last.drop()


async def test_a_connection_is_shown_on_so_many_channels(server_url: str, channel: str) -> None:
    """It gets the messages of further ones all the same, and the places that it leaves are for them."""
    groups = [[f"{channel}.{group}.{number}" for number in range(128)] for group in range(3)]
    frames = await Frames.open(server_url)
    for number, names in enumerate(groups):
        await frames.ask("subscribe", channel=f"mine{number}", selection={"channel": names})
    found = [await asked(server_url, names[-1]) for names in groups]
    assert [(page["num_clients"], page["complete"]) for page in found] == [(1, True), (1, True), (0, True)]
    await publish(server_url, groups[2][0], "read")
    assert (await frames.push())["pub"]["data"] == "read"

    def counted() -> bool:
        found = re.search(
            r'^gapless_presence_unshown_total\{limit="client"\} (\S+)$',
            httpx.get(f"{server_url}/metrics", timeout=PATIENCE_S).text,
            re.MULTILINE,
        )
        return found is not None and float(found[1]) >= 128

    await eventually(counted)
    await frames.ask("unsubscribe", channel="mine0")
    await eventually(lambda: shows(server_url, groups[2][0], 1))
    frames.drop()


async def test_pages_hold_each_client_once(both_hosts: Hosts, channel: str) -> None:
    """On two hosts, whichever is asked."""
    async with AsyncExitStack() as stack:
        for number in range(250):
            url = both_hosts.urls[number % 2]
            await stack.enter_async_context(following(url, channel))
        await eventually(lambda: shows(both_hosts.urls[0], channel, 250))
        await eventually(lambda: shows(both_hosts.urls[1], channel, 250))
        for url in both_hosts.urls:
            listed: list[str] = []
            pages, cursor = 0, ""
            while True:
                page = await asked(url, channel, limit=60, cursor=cursor)
                listed += [client["client"] for client in page["clients"]]
                pages += 1
                if not page["has_more"]:
                    assert page["cursor"] is None
                    break
                cursor = page["cursor"]
            assert pages == 5
            assert len(set(listed)) == 250
            assert listed == sorted(listed)


async def test_another_host_tells_its_readers_too(both_hosts: Hosts, channel: str) -> None:
    one, two = both_hosts.urls
    async with (
        following(one, channel, join_leave=True) as here,
        subscribe(one, channel, presence=True) as stream,
    ):
        await stream.until("ready")
        await eventually(lambda: shows(two, channel, 2))

        async with following(two, channel):
            await eventually(lambda: shows(one, channel, 3))
            # Of one that joins and leaves between two ticks only the leave is told.
            joined = (await stream.until("presence"))[-1].json
            assert joined["action"] == "join"
        await eventually(lambda: shows(one, channel, 2))
        left = (await stream.until("presence"))[-1].json
        assert (left["action"], left["client"]) == ("leave", joined["client"])
        assert (await here.push("leave"))["leave"]["info"]["client"] == joined["client"]


async def test_a_crowd_that_leaves_at_once_is_told_one_by_one(serve: Serve, channel: str) -> None:
    service = serve()
    [worker] = workers(service)
    async with subscribe(service.url, channel, presence=True) as stream:
        await stream.until("ready")
        crowd = [await Frames.open(service.url) for _ in range(5 * MAX_CHANGES)]
        await asyncio.gather(*(frames.send({"id": 9, "subscribe": {"channel": channel}}) for frames in crowd))
        joins = [(await stream.until("presence"))[-1].json for _ in crowd]
        assert {event["action"] for event in joins} == {"join"}
        # However slow the machine is: they leave at once for a worker that sleeps meanwhile.
        stay, leave = crowd[: 2 * MAX_CHANGES], crowd[2 * MAX_CHANGES :]
        os.kill(worker, signal.SIGSTOP)
        try:
            for frames in leave:
                frames.drop()
            await asyncio.gather(*(frames.connection.wait_closed() for frames in leave))
        finally:
            os.kill(worker, signal.SIGCONT)
        leaves = [(await stream.until("presence"))[-1].json for _ in leave]
        assert {event["action"] for event in leaves} == {"leave"}
        there = {event["client"] for event in joins} - {event["client"] for event in leaves}
        found = await asked(service.url, channel, limit=1000)
        assert there < {client["client"] for client in found["clients"]}
        assert len(there) == len(stay) == found["num_clients"] - 1
        for frames in stay:
            frames.drop()


@pytest.mark.parametrize(
    ("query", "status"),
    [({"limit": 0}, 422), ({"limit": 1001}, 422), ({"cursor": "x"}, 400), ({"what": 1}, 422)],
)
async def test_what_is_malformed_is_refused(server_url: str, query: dict[str, Any], status: int) -> None:
    answer = httpx.get(f"{server_url}/v1/channels/a/presence", params=query, timeout=PATIENCE_S)
    assert (answer.status_code, answer.json()["code"]) == (status, "invalid_request")


async def test_clients_of_a_worker_that_was_killed_are_gone(serve: Serve, channel: str) -> None:
    one, two = (serve("--workers", "1", GAPLESS_PRESENCE_EXPIRY=EXPIRY_S) for _ in range(2))
    async with following(one.url, channel), following(two.url, channel):
        await eventually(lambda: shows(two.url, channel, 2))
        one.kill()
        await eventually(lambda: shows(two.url, channel, 1))


@pytest.mark.drill
@pytest.mark.realtime("The service takes a process for lost before its keys expire.")
async def test_clients_of_a_worker_that_was_killed_leave(serve: Serve, channel: str) -> None:
    """More of them than are told at a time."""
    one, two = (serve("--workers", "1", GAPLESS_PRESENCE_EXPIRY="10") for _ in range(2))
    await eventually(lambda: hears(two.url))
    crowd = [await Frames.open(one.url) for _ in range(MAX_CHANGES + 20)]
    async with following(two.url, channel, join_leave=True) as reader:
        await asyncio.gather(*(frames.send({"id": 9, "subscribe": {"channel": channel}}) for frames in crowd))
        joined = {(await reader.push("join"))["join"]["info"]["client"] for _ in crowd}
        assert len(joined) == len(crowd)
        one.kill()
        left = {(await reader.push("leave"))["leave"]["info"]["client"] for _ in crowd}
        assert left == joined
        assert (await told(reader, "presence_stats", channel))["num_clients"] == 1
    for frames in crowd:
        frames.drop()


@pytest.mark.realtime("A service that stops gives Redis 2 s to remove its clients.")
async def test_a_host_that_stops_takes_its_clients_along(serve: Serve, channel: str) -> None:
    """At once: not after they expire."""
    one, two = (serve(GAPLESS_PRESENCE_EXPIRY="30") for _ in range(2))
    async with subscribe(two.url, channel) as stream:
        await stream.until("ready")
        async with following(one.url, channel):
            await eventually(lambda: shows(two.url, channel, 2))
            # It has gone only after it took them along: there is nothing to wait for.
            await asyncio.to_thread(one.stop)
            assert await shows(two.url, channel, 1)


async def test_without_redis_presence_says_so_and_messages_flow(
    serve: Serve, tmp_path: Path, channel: str
) -> None:
    server = EmbeddedRedis(tmp_path / "own")
    server.start()
    service = serve(GAPLESS_REDIS_URL=server.url, GAPLESS_PRESENCE_EXPIRY=EXPIRY_S)
    before = workers(service)
    async with (
        following(service.url, channel, join_leave=True) as one,
        subscribe(service.url, channel) as two,
    ):
        await two.until("ready")
        await eventually(lambda: shows(service.url, channel, 2))
        server.stop()
        async with http_client() as client:

            async def unavailable() -> bool:
                answer = await client.get(f"{service.url}/v1/channels/{channel}/presence")
                if answer.status_code == 200:
                    return False
                assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
                assert answer.json()["retryable"]
                assert "Redis" in answer.json()["detail"]
                return True

            await eventually(unavailable)
        for command in ("presence", "presence_stats"):
            refused = (await one.ask(command, channel=channel))["error"]
            assert (refused["code"], refused["temporary"]) == (100, True)
        await publish(service.url, channel, "flows")
        assert (await one.push())["pub"]["data"] == "flows"
        assert [message["data"] for message in await two.messages(1)] == ["flows"]
        async with following(service.url, channel) as three:
            info = (await three.ask("refresh"))["refresh"]["client"]
            while (await one.push("join"))["join"]["info"]["client"] != info:
                pass
        server.start()
        await eventually(lambda: came_back(service.url, channel, 2))
        admin = redis.asyncio.Redis.from_url(server.url)
        await admin.flushall()
        await admin.aclose()
        await eventually(lambda: came_back(service.url, channel, 2))
    assert workers(service) == before
    server.stop()


async def came_back(url: str, channel: str, count: int) -> bool:
    async with http_client() as client:
        answer = await client.get(f"{url}/v1/channels/{channel}/presence")
    return answer.status_code == 200 and answer.json()["num_clients"] == count
