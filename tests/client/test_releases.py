"""What nobody worked on is released: cancelled blocks, and what a consumer that closes had read ahead."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from gapless import AsyncClient, AsyncConsumer, AsyncDelivery, Client

from tests.client.model import deliveries, problem
from tests.client.queue_server import QueueServer, giving
from tests.client.raw_server import answer
from tests.client.test_members import blocking, client, server, wait_for
from tests.patience import PATIENCE_S, eventually, in_time, wait_until

__all__ = ["blocking", "client", "server"]


async def test_a_cancelled_block_releases_its_message_without_waiting(
    server: QueueServer, client: AsyncClient
) -> None:
    server.streams = [giving(1)]
    server.gates = {"release": threading.Event()}
    entered = asyncio.Event()
    async with client.consume("orders") as consumer:
        delivery = await anext(consumer)

        async def hold() -> None:
            async with delivery:
                entered.set()
                await asyncio.Event().wait()

        holding = asyncio.create_task(hold())
        await entered.wait()
        holding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await in_time(holding)
        await wait_for(server, lambda: len(server.bodies("release")) == 1)
        server.gates["release"].set()
    assert server.settled == [("release", {"receipts": ["r-1-1"]})]


async def test_what_is_broken_off_on_the_way_to_the_end_is_released_at_the_end(
    server: QueueServer, client: AsyncClient
) -> None:
    """Released sooner, it would come to the same stream again, and nobody would look at it."""
    server.streams = [giving(1, 2)]
    async with client.consume("orders") as consumer:
        delivery = await anext(consumer)
        consumer.stop()
        with pytest.raises(asyncio.CancelledError):
            await cancelled_in(delivery)
        assert server.settled == []
        await read_ahead(consumer, 1)
    assert server.settled == [("release", {"receipts": ["r-1-1", "r-2-1"]})]
    await wait_for(server, lambda: server.left == 1)


async def test_a_consumer_that_closes_releases_what_it_read_ahead_and_nothing_else(
    server: QueueServer, client: AsyncClient
) -> None:
    """And opens no other stream."""
    server.streams = [giving(1, 2, 3, 4)]
    async with client.consume("orders") as consumer:
        async with await anext(consumer):
            pass
        kept = await anext(consumer)
        await read_ahead(consumer, 2)
    assert server.settled == [
        ("ack", {"receipts": ["r-1-1"]}),
        ("release", {"receipts": ["r-3-1", "r-4-1"]}),
    ]
    assert server.opened == 1
    assert kept.lost, "what the caller has in hand ended with the stream"


async def test_what_comes_while_the_last_is_released_is_released_too(
    server: QueueServer, client: AsyncClient
) -> None:
    go = threading.Event()

    def two(exchange: Any) -> None:
        giving(1, hold=False)(exchange)
        assert go.wait(PATIENCE_S)
        exchange.send(b"%x\r\n%b\r\n" % (len(deliveries(2)), deliveries(2)))
        exchange.hold()

    server.streams = [two]
    server.gates = {"release": threading.Event()}
    consumer = client.consume("orders")
    await consumer._member.opened()
    await read_ahead(consumer, 1)
    closing = asyncio.create_task(consumer.aclose())
    await wait_for(server, lambda: len(server.bodies("release")) == 1)
    go.set()
    await read_ahead(consumer, 1)
    server.gates["release"].set()
    await in_time(closing)
    assert server.receipts("release") == ["r-1-1", "r-2-1"]


@pytest.mark.parametrize("refusal", [(503, "unavailable"), (404, "subscription_not_found")])
async def test_a_release_that_fails_holds_up_no_end(
    server: QueueServer, client: AsyncClient, refusal: tuple[int, str]
) -> None:
    server.streams = [giving(1)]
    server.overrides = {"release": answer(refusal[0], problem(*refusal))}
    async with client.consume("orders") as consumer:
        await read_ahead(consumer, 1)
    assert len(server.bodies("release")) == 1
    await wait_for(server, lambda: server.left == 1)


def test_a_closed_consumer_of_threads_releases_what_it_read_ahead(
    server: QueueServer, blocking: Client
) -> None:
    server.streams = [giving(1, 2, 3)]
    with blocking.consume("orders") as consumer:
        delivery = next(consumer)
        consumer.stop()
        with pytest.raises(KeyboardInterrupt), delivery:
            raise KeyboardInterrupt
        wait_until(lambda: len(consumer._member._inbox) == 2)
    assert server.settled == [("release", {"receipts": ["r-1-1", "r-2-1", "r-3-1"]})]
    server.wait_for(lambda: server.left == 1)


async def read_ahead(consumer: AsyncConsumer, count: int) -> None:
    """Returns once so many deliveries wait in the client."""
    await eventually(lambda: len(consumer._member._inbox) == count)


async def cancelled_in(delivery: AsyncDelivery) -> None:
    async with delivery:
        raise asyncio.CancelledError


def test_an_interrupted_block_releases_its_message(server: QueueServer, blocking: Client) -> None:
    server.streams = [giving(1, 2)]
    with blocking.consume("orders") as consumer:
        with pytest.raises(KeyboardInterrupt), next(consumer):
            raise KeyboardInterrupt
        settled = next(consumer)
        settled.ack()
        with pytest.raises(KeyboardInterrupt), settled:
            raise KeyboardInterrupt
    assert server.bodies("release") == [{"receipts": ["r-1-1"]}]
    assert server.bodies("nack") == []
