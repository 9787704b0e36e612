"""What is released was not handed out, over every face and two hosts of one installation."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

import pytest

from tests.integration.queueing import Host, attempts, deliveries
from tests.integration.test_queues import settle
from tests.integration.test_websocket_queues import consume, opened, statuses, take
from tests.patience import in_time

Both = tuple[Host, Host]
DAY_S = 86_400


async def test_what_is_released_was_not_handed_out(hosts: Both) -> None:
    """By any host, with the name and without."""
    one, two = hosts
    queue = await one.subscribe("freed", ordering="none", ack_wait=DAY_S, max_deliver=1)
    await one.publish("freed", 1, 2)
    for release in (queue.at(two).release, partial(settle, two, "release")):
        both = await queue.take(2)
        assert attempts(both) == [1, 1]
        assert await release(both[0], {"receipt": "x"}) == ["released", "unknown"]
        assert await release(*both) == ["lease_expired", "released"]
    held = await queue.take(2)
    assert await queue.release(*held, delay=600) == ["released"] * 2
    (shown, _) = (await one.ask("GET", f"{queue.path}/messages?state=delayed"))["messages"]
    assert (shown["attempt"], "last_error" in shown) == (0, False)
    assert await one.letters(channel="freed") == []


async def test_a_pull_that_waits_at_one_host_gets_what_is_released_at_another(hosts: Both) -> None:
    one, two = hosts
    queue = await one.subscribe("freed.far", ack_wait=DAY_S)
    await one.publish("freed.far", 1)
    (held,) = await queue.take(1)
    waiting = asyncio.create_task(queue.come(1))
    assert await queue.at(two).release(held) == ["released"]
    (again,) = await in_time(waiting)
    assert (again["attempt"], again["message"]["id"]) == (1, held["message"]["id"])


@pytest.mark.parametrize("end", ["release", "nothing"])
async def test_a_stream_that_ends_leaves_no_attempt_of_what_it_released(hosts: Both, end: str) -> None:
    """Wherever it was released: the process that streams does not hand it the next ones meanwhile."""
    one, two = hosts
    queue = await one.subscribe(f"left.{end}", ordering="none", ack_wait=DAY_S)
    await one.publish(f"left.{end}", *range(30))
    async with queue.consume(prefetch=5) as stream:
        given = await deliveries(stream, 5)
        if end == "release":
            assert await queue.at(two).release(*given) == ["released"] * 5
    taken = await queue.take(30)
    assert Counter(attempts(taken)) == ({1: 30} if end == "release" else {1: 25, 2: 5})
    await queue.ack(*taken)


async def test_it_is_released_over_websocket_as_over_http(hosts: Both) -> None:
    one, two = hosts
    name = "freed.socket"
    queue = await one.subscribe(name, ordering="none", ack_wait=DAY_S, max_deliver=1)
    await one.publish(name, 1, 2, 3)
    async with opened(one.url) as client:
        await consume(client, name)
        first, second, third = await take(client, 3, name)
        assert await statuses(client, "release", first) == ["released"]
        (again,) = await take(client, 1, name)
        assert (again["attempt"], again["message"]) == (1, first["message"])
        assert await queue.at(two).release(second, delay=600) == ["released"]
        assert await statuses(client, "release", first, second, third) == [
            "lease_expired",
            "lease_expired",
            "released",
        ]
        assert await statuses(client, "ack", again) == ["acked"]


async def test_who_releases_and_unconsumes_in_one_breath_leaves_no_attempt(hosts: Both) -> None:
    one, _ = hosts
    name = "freed.breath"
    queue = await one.subscribe(name, ordering="none", ack_wait=DAY_S)
    await one.publish(name, *range(20))
    async with opened(one.url) as client:
        await consume(client, name, prefetch=5)
        given = await take(client, 5, name)
        released = {"id": 70, "release": {"receipts": [d["receipt"] for d in given]}}
        await client.send(released, {"id": 71, "unconsume": {"subscription": name}})
        assert (await client.reply(70))["release"]["results"]
        assert (await client.reply(71))["unconsume"] == {}
        assert attempts(await queue.take(20)) == [1] * 20
