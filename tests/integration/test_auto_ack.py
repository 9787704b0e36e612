"""Deliveries that are settled when they are handed out: by pull, event stream and WebSocket."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from tests.integration.frames import Frames
from tests.integration.queueing import Delivery, Host, Queue, data, deliveries
from tests.integration.test_websocket_queues import consume, opened, take
from tests.patience import eventually

Both = tuple[Host, Host]


@pytest.fixture
def name() -> str:
    """A name of its own for each test: they share services."""
    return f"auto.{uuid.uuid4().hex[:10]}"


async def pull(queue: Queue, count: int, wait: float = 0) -> list[Delivery]:
    asked = {"max": count, "wait": wait, "ack": "auto"}
    found: list[Delivery] = (await queue.host.ask("POST", f"{queue.path}/pull", json=asked))["deliveries"]
    return found


async def counts(queue: Queue) -> tuple[int, int, int]:
    stats = await queue.stats()
    return stats["acked"], stats["in_flight"], stats["lag"]


async def test_what_is_pulled_is_settled_and_has_no_receipt(hosts: Both, name: str) -> None:
    one, two = hosts
    queue = await one.subscribe(name, max_in_flight=2)
    await one.publish(name, *range(5), key="k")
    taken: list[Delivery] = []
    while len(taken) < 5:
        # Each message of the key is free as soon as the one before it was handed out.
        taken += await pull(queue.at((one, two)[len(taken) % 2]), 10, 30)
    assert data(taken) == list(range(5))
    assert {frozenset(delivery) for delivery in taken} == {frozenset({"attempt", "message"})}
    assert {delivery["attempt"] for delivery in taken} == {1}
    assert await counts(queue) == (5, 0, 0)
    assert await pull(queue, 10) == []


@pytest.mark.parametrize("prefetch", [1, 10])
async def test_a_stream_goes_on_without_acks(hosts: Both, name: str, prefetch: int) -> None:
    one, _ = hosts
    queue = await one.subscribe(name)
    await one.publish(name, *range(20), key="k")
    async with queue.consume(prefetch=prefetch, ack="auto") as stream:
        taken = await deliveries(stream, 20)
    assert data(taken) == list(range(20))
    assert not any("receipt" in delivery for delivery in taken)
    assert await counts(queue) == (20, 0, 0)
    assert await queue.pull() == []


async def test_a_client_goes_on_without_acks(hosts: Both, name: str) -> None:
    one, _ = hosts
    queue = await one.subscribe(name)
    await one.publish(name, *range(20))
    async with opened(one.url) as client:
        await consume(client, name, prefetch=3, ack="auto")
        taken = await take(client, 20, name)
    assert sorted(data(taken)) == list(range(20))
    assert not any("receipt" in delivery for delivery in taken)
    assert await counts(queue) == (20, 0, 0)


async def test_clients_that_are_cut_off_get_each_message_at_most_once(hosts: Both, name: str) -> None:
    """What was settled and did not arrive is lost: that is what they asked for."""
    queue = await hosts[0].subscribe(name, ordering="none")
    published = 0
    crowds = 2
    seen: list[Any] = []

    async def publish() -> None:
        # How much is lost on a connection that is cut off has no limit, and no client may wait in vain.
        nonlocal published
        while crowds:
            if (await counts(queue))[2] == 0:
                await hosts[0].publish(name, *range(published, published + 50))
                published += 50
            await asyncio.sleep(0.01)

    async def crowd(host: Host) -> None:
        nonlocal crowds
        for count in range(1, 15):
            client = await Frames.open(host.url)
            await consume(client, name, prefetch=5, ack="auto")
            seen.extend(data(await take(client, count, name)))
            client.drop()
        crowds -= 1

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(publish())
        for host in hosts:
            tasks.create_task(crowd(host))

    async def is_settled() -> bool:
        seen.extend(data(await pull(queue, 100)))
        return (await counts(queue))[1:] == (0, 0)

    await eventually(is_settled)
    assert len(seen) == len(set(seen))
    assert (await counts(queue))[0] == published
    assert await hosts[0].letters(subscription=name) == []


async def test_a_client_that_wants_no_more_loses_nothing(hosts: Both, name: str) -> None:
    """What the service was settling when the `unconsume` came is pushed before its reply."""
    one, _ = hosts
    queue = await one.subscribe(name, ordering="none")
    await one.publish(name, *range(600))
    seen: list[Any] = []
    async with opened(one.url) as client:
        for count in range(1, 31):
            await consume(client, name, prefetch=7, ack="auto")
            seen += data(await take(client, count % 5 + 1, name))
            await client.ask("unconsume", subscription=name)
            seen += data([push["delivery"] for push in client.pushes])
            client.pushes.clear()
            acked, in_flight, lag = await counts(queue)
            assert (acked, in_flight + lag) == (len(seen), 600 - len(seen))
    assert sorted(set(seen)) == sorted(seen)


async def test_a_receiver_that_settles_says_so_or_nothing(hosts: Both, name: str) -> None:
    one, _ = hosts
    queue = await one.subscribe(name)
    await one.publish(name, 1)
    asked = {"ack": "manual", "wait": 30}
    (delivery,) = (await one.ask("POST", f"{queue.path}/pull", json=asked))["deliveries"]
    assert await queue.ack(delivery) == ["acked"]


@pytest.mark.parametrize("ack", ["none", "AUTO", True])
async def test_other_values_are_refused(hosts: Both, name: str, ack: Any) -> None:
    one, _ = hosts
    queue = await one.subscribe(name)
    await one.ask("POST", f"{queue.path}/pull", 422, json={"ack": ack})
    await one.ask("GET", f"{queue.path}/consume", 422, params={"ack": ack})
    async with opened(one.url) as client:
        assert (await client.ask("consume", subscription=name, ack=ack))["error"]["code"] == 107
