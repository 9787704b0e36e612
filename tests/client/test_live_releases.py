"""Against the real service: what was cancelled, stopped or read ahead is no attempt, over either way.

What was settled when it was handed out does not come again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from uuid import uuid4

import pytest
from gapless import AsyncClient, AsyncConsumer, AsyncDelivery, Client, Delivery, PulledDelivery

from tests.client.over_websocket import OVER, Over
from tests.patience import cancel, eventually, in_time, wait_until

TIMES = 5


@pytest.fixture
def name() -> str:
    """A name no other test uses, for a subscription and a channel."""
    return f"r{uuid4().hex[:12]}"


@pytest.fixture
async def client(server_url: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server_url) as client:
        yield client


async def filled(client: AsyncClient, name: str, count: int, **options: object) -> None:
    """A subscription of a channel that holds so many messages."""
    own = {"start": "earliest", "ordering": "none", "max_deliver": 2, "ack_wait": 600, **options}
    await client.subscriptions.create(name, [name], **own)  # type: ignore[arg-type]
    await client.publish_many(name, list(range(count)))


async def attempts_of_all(client: AsyncClient, name: str, count: int) -> list[int]:
    """As the next member sees them."""

    async def all_ready() -> bool:
        return len([one async for one in client.subscriptions.look(name, "ready")]) == count

    await eventually(all_ready)
    return [one.attempt for one in await client.pull(name, count)]


@pytest.mark.parametrize("over", OVER)
async def test_a_block_that_is_cancelled_is_no_attempt(client: AsyncClient, name: str, over: Over) -> None:
    """However often, and whatever else is in hand."""
    await filled(client, name, 4)
    async with over(client) as connection, connection.consume(name, prefetch=4) as consumer:
        beside = [await anext(consumer) for _ in range(3)]
        for _ in range(TIMES):
            delivery = await in_time(anext(consumer))
            assert (delivery.message.data, delivery.attempt) == (3, 1)
            with suppress(TimeoutError):
                async with asyncio.timeout(0.01), delivery:
                    await asyncio.Event().wait()
        delivery = await in_time(anext(consumer))
        for one in (*beside, delivery):
            assert (await one.ack()).status == "acked"
    assert [one async for one in client.dead_letters.list(subscription=name)] == []


@pytest.mark.parametrize("over", OVER)
async def test_work_that_is_stopped_is_no_attempt(client: AsyncClient, name: str, over: Over) -> None:
    await filled(client, name, 3, max_deliver=1)
    seen: list[tuple[int, int]] = []
    async with over(client) as connection:
        for _ in range(TIMES):
            busy = asyncio.Event()

            async def handle(delivery: AsyncDelivery, busy: asyncio.Event = busy) -> None:
                seen.append((delivery.message.data, delivery.attempt))
                busy.set()
                await asyncio.Event().wait()

            async with connection.consume(name, prefetch=2) as consumer:
                working = asyncio.create_task(consumer.work(handle))
                await in_time(busy.wait())
                await cancel(working)
    assert [attempt for _, attempt in seen] == [1] * TIMES
    assert await attempts_of_all(client, name, 3) == [1] * 3


@pytest.mark.parametrize("over", OVER)
async def test_one_message_alone_in_hand_is_no_attempt_when_work_stops(
    client: AsyncClient, name: str, over: Over
) -> None:
    """There is nobody else to take it, so the service must not hand it to the one that leaves."""
    await filled(client, name, 1, max_deliver=1)
    async with over(client) as connection:
        for _ in range(TIMES):
            async with connection.consume(name) as consumer:
                delivery = await in_time(anext(consumer))
                assert delivery.attempt == 1
                with pytest.raises(asyncio.CancelledError):
                    await stopped_in(delivery, consumer)
    assert await attempts_of_all(client, name, 1) == [1]


async def stopped_in(delivery: AsyncDelivery, consumer: AsyncConsumer) -> None:
    async with delivery:
        consumer.stop()
        raise asyncio.CancelledError


@pytest.mark.parametrize("over", OVER)
async def test_what_was_read_ahead_is_no_attempt_though_much_more_waits(
    client: AsyncClient, name: str, over: Over
) -> None:
    await filled(client, name, 200)
    async with over(client) as connection:
        for _ in range(TIMES):
            async with connection.consume(name, prefetch=20) as consumer, await in_time(anext(consumer)):
                pass
    assert await attempts_of_all(client, name, 200 - TIMES) == [1] * (200 - TIMES)


async def test_what_is_released_by_hand_has_its_attempt_again(client: AsyncClient, name: str) -> None:
    await filled(client, name, 1)
    (pulled,) = await client.pull(name)
    assert [one.status for one in await client.release(name, [pulled, "nonsense"])] == ["released", "unknown"]
    assert [one.status for one in await client.release(None, [pulled])] == ["lease_expired"]
    async with client.consume(name) as consumer:
        delivery = await in_time(anext(consumer))
        assert delivery.attempt == 1
        assert (await delivery.release(delay=60)).status == "released"
        assert [(one.state, one.attempt) async for one in client.subscriptions.look(name)] == [("delayed", 0)]
        assert (await delivery.ack()).status == "lease_expired"


def test_threads_that_are_stopped_release_what_they_read_ahead(server_url: str, name: str) -> None:
    with Client(server_url) as client:
        client.subscriptions.create(name, [name], start="earliest", ordering="none", max_deliver=1)
        client.publish_many(name, list(range(50)))
        for _ in range(TIMES):
            with client.consume(name, prefetch=10) as consumer:
                stopping = threading.Event()

                def handle(delivery: Delivery, stopping: threading.Event = stopping) -> None:
                    assert delivery.attempt == 1
                    stopping.set()

                working = threading.Thread(target=consumer.work, args=(handle,))
                working.start()
                stopping.wait()
                consumer.stop()
                working.join()

        def given_back() -> list[int]:
            """The attempts, once what was on its way to a stream that is closed is given back."""
            found = list(client.subscriptions.look(name))
            return [] if any(one.state == "leased" for one in found) else [one.attempt for one in found]

        assert set(wait_until(given_back)) == {0}
        assert list(client.dead_letters.list(subscription=name)) == []


async def test_what_a_pull_settles_never_comes_again(client: AsyncClient, name: str) -> None:
    await filled(client, name, 3, ordering="key", max_in_flight=1)
    taken: list[PulledDelivery] = []
    while len(taken) < 3:
        taken += await client.pull(name, 10, wait=10, ack="auto")
    assert [one.message.data for one in taken] == [0, 1, 2]
    assert {(one.attempt, one.receipt, one.deadline) for one in taken} == {(1, None, None)}
    stats = (await client.subscriptions.get(name)).stats
    assert stats is not None
    assert (stats.acked, stats.lag, stats.in_flight) == (3, 0, 0)
    assert await client.pull(name, 10) == []
    for late in (client.ack, client.nack, client.release, client.extend):
        with pytest.raises(ValueError, match="settled when it was handed out"):
            await late(name, taken[:1])
    with pytest.raises(ValueError, match="settled when it was handed out"):
        await client.transaction(ack=taken[:1])
