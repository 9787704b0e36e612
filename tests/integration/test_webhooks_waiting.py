"""Webhooks at hosts that hang: what waits for its place and gives way was no attempt."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import pytest

from tests.conftest import Serve
from tests.hook import Hook, hook, silence
from tests.integration.test_webhooks import ALLOW, OK, Held, Pushed, named, numbers, ok
from tests.patience import eventually, http_client

MESSAGES = 30
MOST = 2


async def attempts_of(pushed: Pushed) -> Counter[Any]:
    """How often each message was handed out, by its data: of those not settled, and of dead letters."""
    page = ok(await pushed.client.get(f"{pushed.path}/messages", params={"limit": 1000}))
    counted = Counter({each["message"]["data"]: each["attempt"] for each in page["messages"]})
    for letter in await pushed.dead_letters():
        counted[letter["message"]["data"]] = letter["attempts"]
    return counted


def posted(there: Hook, count: int) -> bool:
    return len(there.requests) >= count


async def nothing_in_flight(pushed: Pushed) -> bool:
    return bool((await pushed.stats())["in_flight"] == 0)


async def check(pushed: Pushed, there: Hook) -> None:
    """Nothing is leased: each attempt was a post, and who died was posted to as often as it may be."""
    posts = Counter(numbers(there))
    counted = await attempts_of(pushed)
    assert {n: (count, posts[n]) for n, count in counted.items() if count > posts[n]} == {}
    dead = [letter["message"]["data"] for letter in await pushed.dead_letters()]
    assert {n: posts[n] for n in dead if posts[n] < MOST} == {}


@pytest.mark.drill
@pytest.mark.realtime("The service gives a receiver three quarters of a lease for its answer.")
async def test_what_waits_for_its_place_at_a_host_that_hangs_is_no_attempt(serve: Serve) -> None:
    """Whatever makes it give way: the crowd, a pause, a change, a stop."""
    service = serve(**ALLOW)
    async with hook(silence) as there:
        async with http_client(service.url) as client:
            pushed = named(client)
            ok(await pushed.put(there, ack_wait=2, max_deliver=MOST, backoff=[0], ordering="none"), 201)
            await pushed.publish(*range(MESSAGES))
            for posts in (3, 5, 7):
                await eventually(partial(posted, there, posts))
                ok(await client.post(f"{pushed.path}/pause"))
                await eventually(partial(nothing_in_flight, pushed))
                await check(pushed, there)
                ok(await client.post(f"{pushed.path}/resume"))
            await eventually(partial(posted, there, len(there.requests) + 1))
        assert service.stop() == 0
        async with http_client(serve(**ALLOW).url) as client:
            pushed.client = client
            ok(await client.post(f"{pushed.path}/pause"))
            await eventually(partial(nothing_in_flight, pushed))
            await check(pushed, there)


@pytest.mark.realtime("The service gives a receiver 15 s for its answer.")
@pytest.mark.parametrize("way", ["pause", "change", "stop"])
async def test_what_waits_gives_way_at_once_and_what_is_posted_does_not(serve: Serve, way: str) -> None:
    service = serve(**ALLOW)
    held = Held()
    async with hook(held) as old, hook(OK) as new:
        async with http_client(service.url) as client:
            pushed = named(client)
            ok(await pushed.put(old, max_deliver=1, ordering="none"), 201)
            await pushed.publish(*range(10))
            await eventually(lambda: len(old.requests) == 3)
            if way == "pause":
                ok(await client.post(f"{pushed.path}/pause"))
                await eventually(partial(in_flight, pushed, 3))
                held.release()
                await eventually(partial(nothing_in_flight, pushed))
                assert len(old.requests) == 3
                ok(await client.post(f"{pushed.path}/resume"))
                await eventually(lambda: pushed.settled(10))
            elif way == "change":
                ok(await client.patch(pushed.path, json={"push": {"url": new.target("localhost").url}}))
                await eventually(lambda: len(new.requests) == 7)
                assert len(old.requests) == 3
                held.release()
                await eventually(lambda: pushed.settled(10))
            else:
                stopping = asyncio.create_task(asyncio.to_thread(service.stop))
                async with http_client(serve(**ALLOW).url) as other:
                    pushed.client = other
                    await eventually(lambda: len(old.requests) > 3)
                    held.release()
                    assert await stopping == 0
                    await eventually(lambda: pushed.settled(10))
        assert not new.requests or way == "change"
    assert sorted(numbers(old) + numbers(new)) == list(range(10))


async def in_flight(pushed: Pushed, count: int) -> bool:
    return bool((await pushed.stats())["in_flight"] == count)
