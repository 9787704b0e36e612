"""Members at work: several hands on one consumer, gathered acks, cancellation, and consumers thrown away."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gapless
import pytest
from gapless import AsyncClient, AsyncDelivery, Client, Delivery, Forbidden, NotFound, RetryPolicy

from tests.client.model import deliveries, problem
from tests.client.queue_server import HOLD_S, QueueServer, giving, stream
from tests.client.raw_server import RawServer, answer
from tests.patience import PATIENCE_S, cancel, in_time

ONE_TRY = RetryPolicy(attempts=1)


@pytest.fixture
def server(raw_server: RawServer) -> QueueServer:
    return QueueServer(raw_server)


@pytest.fixture
async def client(server: QueueServer) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url, timeout=HOLD_S, retry=ONE_TRY) as client:
        yield client


@pytest.fixture
def blocking(server: QueueServer) -> Iterator[Client]:
    with Client(server.url, timeout=HOLD_S, retry=ONE_TRY) as client:
        yield client


async def wait_for(server: QueueServer, true: Callable[[], bool]) -> None:
    await asyncio.to_thread(server.wait_for, true)


async def test_acks_that_come_meanwhile_go_out_in_one_call(server: QueueServer, client: AsyncClient) -> None:
    server.streams = [giving(*range(1, 8))]
    server.gates = {"ack": threading.Event()}
    server.status = {"r-3-1": "lease_expired", "r-5-1": "unknown"}
    async with client.consume("orders") as consumer:
        found = [await anext(consumer) for _ in range(7)]
        first = asyncio.create_task(found[0].ack())
        await wait_for(server, lambda: len(server.bodies("ack")) == 1)
        rest = [asyncio.create_task(one.ack()) for one in found[1:]]
        await asyncio.sleep(0)
        server.gates["ack"].set()
        results = await asyncio.gather(first, *rest)
    assert [len(body["receipts"]) for body in server.bodies("ack")] == [1, 6]
    assert [one.receipt for one in results] == [f"r-{n}-1" for n in range(1, 8)]
    assert [one.status for one in results].count("acked") == 5
    assert [one.lost for one in found] == [n == 3 for n in range(1, 8)]


def test_threads_gather_their_acks_too(server: QueueServer, blocking: Client) -> None:
    server.streams = [giving(*range(1, 8))]
    server.gates = {"ack": threading.Event()}
    server.status = {"r-3-1": "lease_expired"}
    with blocking.consume("orders") as consumer, ThreadPoolExecutor(7) as threads:
        found = [next(consumer) for _ in range(7)]
        results = [threads.submit(found[0].ack)]
        server.wait_for(lambda: len(server.bodies("ack")) == 1)
        results += [threads.submit(one.ack) for one in found[1:]]
        gathered = consumer._member._acks
        while len(gathered._waiting) < 6:
            assert not any(result.done() for result in results)
        server.gates["ack"].set()
        settled = [result.result(PATIENCE_S) for result in results]
    assert [len(body["receipts"]) for body in server.bodies("ack")] == [1, 6]
    assert [one.receipt for one in settled] == [f"r-{n}-1" for n in range(1, 8)]
    assert [one.lost for one in found] == [n == 3 for n in range(1, 8)]


async def test_a_call_that_fails_fails_for_all_it_carried(server: QueueServer, client: AsyncClient) -> None:
    server.streams = [giving(1, 2)]
    server.overrides = {"ack": answer(403, problem(403, "forbidden"))}
    async with client.consume("orders") as consumer:
        found = [await anext(consumer) for _ in range(2)]
        errors = await asyncio.gather(*(one.ack() for one in found), return_exceptions=True)
    assert [type(error) for error in errors] == [Forbidden, Forbidden]
    assert errors[0] is not errors[1]
    assert len(server.bodies("ack")) == 1


def test_a_call_that_fails_fails_for_all_threads_it_carried(server: QueueServer, blocking: Client) -> None:
    server.streams = [giving(1, 2, 3)]
    server.overrides = {"ack": answer(403, problem(403, "forbidden"))}
    with blocking.consume("orders") as consumer, ThreadPoolExecutor(3) as threads:
        results = [threads.submit(next(consumer).ack) for _ in range(3)]
        errors = [result.exception(PATIENCE_S) for result in results]
    assert [type(error) for error in errors] == [Forbidden] * 3


async def test_one_who_is_cancelled_while_acking_takes_nothing_from_the_others(
    server: QueueServer, client: AsyncClient
) -> None:
    server.streams = [giving(1, 2, 3)]
    server.gates = {"ack": threading.Event()}
    async with client.consume("orders") as consumer:
        found = [await anext(consumer) for _ in range(3)]
        acks = [asyncio.create_task(one.ack()) for one in found]
        await wait_for(server, lambda: len(server.bodies("ack")) == 1)
        acks[0].cancel()
        acks[2].cancel()
        await asyncio.sleep(0)
        server.gates["ack"].set()
        assert (await acks[1]).status == "acked"
    assert server.receipts("ack") == ["r-1-1", "r-2-1", "r-3-1"]
    assert found[0]._lease.settled


async def test_an_end_that_nobody_waited_for_is_still_told(server: QueueServer, client: AsyncClient) -> None:
    """Closing waits for what is being settled, so that the stream does not end under it."""
    server.streams = [giving(1)]
    server.gates = {"ack": threading.Event()}
    consumer = client.consume("orders")
    delivery = await anext(consumer)
    acking = asyncio.create_task(delivery.ack())
    await wait_for(server, lambda: len(server.bodies("ack")) == 1)
    closing = asyncio.create_task(consumer.aclose())
    await asyncio.sleep(0)
    assert server.left == 0
    server.gates["ack"].set()
    await closing
    assert (await acking).status == "acked"
    await wait_for(server, lambda: server.left == 1)


def test_closing_waits_for_the_acks_of_other_threads(server: QueueServer, blocking: Client) -> None:
    server.streams = [giving(1)]
    server.gates = {"ack": threading.Event()}
    consumer = blocking.consume("orders")
    delivery = next(consumer)
    with ThreadPoolExecutor(2) as threads:
        acking = threads.submit(delivery.ack)
        server.wait_for(lambda: len(server.bodies("ack")) == 1)
        closing = threads.submit(consumer.close)
        while not consumer._member._stopped:
            assert not closing.done()
        assert server.left == 0
        server.gates["ack"].set()
        assert acking.result(PATIENCE_S).status == "acked"
        closing.result(PATIENCE_S)
    server.wait_for(lambda: server.left == 1)


@pytest.mark.parametrize("steps", range(8))
async def test_giving_up_a_wait_loses_nothing_and_keeps_the_connection(
    server: QueueServer, client: AsyncClient, steps: int
) -> None:
    go = threading.Event()

    def later(exchange: Any) -> None:
        stream(hold=False)(exchange)
        assert go.wait(PATIENCE_S)
        exchange.send(b"%x\r\n%b\r\n" % (len(deliveries(1, 2)), deliveries(1, 2)))
        exchange.hold()

    server.streams = [later]
    async with client.consume("orders") as consumer:
        waiting = asyncio.create_task(anext(consumer))
        for _ in range(steps):
            await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        go.set()
        found = [(await anext(consumer)).message.id for _ in range(2)]
    assert found == [1, 2]
    assert server.opened == 1


@pytest.mark.parametrize("face", ["async", "sync"])
def test_a_consumer_nobody_holds_any_more_leaves_no_connection(server: QueueServer, face: str) -> None:
    server.streams = [giving(1, 2, 3)]

    async def leave_half_way() -> None:
        async with AsyncClient(server.url) as client:
            async for delivery in client.consume("orders"):
                async with delivery:
                    break
            del delivery
            await wait_for(server, lambda: server.left == 1)

    if face == "async":
        asyncio.run(leave_half_way())
    else:
        with Client(server.url) as client:
            for delivery in client.consume("orders"):
                with delivery:
                    break
            del delivery
            server.wait_for(lambda: server.left == 1)
    assert server.receipts("ack") == ["r-1-1"]
    gc.collect()


def test_a_delivery_in_hand_holds_its_stream(server: QueueServer, blocking: Client) -> None:
    server.streams = [giving(1)]
    delivery = next(blocking.consume("orders"))
    gc.collect()
    with delivery:
        assert server.left == 0
    assert not delivery.lost
    del delivery
    server.wait_for(lambda: server.left == 1)


async def test_closing_the_client_ends_its_consumers(server: QueueServer) -> None:
    client = AsyncClient(server.url)
    consumer = client.consume("orders")
    await consumer.__aenter__()
    waiting = asyncio.create_task(anext(consumer, None))
    await asyncio.sleep(0)
    await client.aclose()
    assert await in_time(waiting) is None


def test_closing_releases_threads_that_wait(server: QueueServer, blocking: Client) -> None:
    consumer = blocking.consume("orders").__enter__()
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(list, consumer) for _ in range(3)]
        consumer.close()
        assert [one.result(PATIENCE_S) for one in waiting] == [[], [], []]


async def test_work_is_done_by_as_many_as_were_asked_for(server: QueueServer, client: AsyncClient) -> None:
    server.streams = [giving(*range(1, 11))]
    busy, most, done = 0, 0, list[int]()
    async with client.consume("orders", prefetch=10) as consumer:

        async def handle(delivery: AsyncDelivery) -> None:
            nonlocal busy, most
            busy += 1
            most = max(most, busy)
            await asyncio.sleep(0)
            busy -= 1
            done.append(delivery.message.id)
            if len(done) == 10:
                consumer.stop()

        await in_time(consumer.work(handle, concurrency=4))
    assert sorted(done) == list(range(1, 11))
    assert most == 4
    assert sorted(server.receipts("ack")) == sorted(f"r-{n}-1" for n in range(1, 11))


def test_threads_work_side_by_side(server: QueueServer, blocking: Client) -> None:
    server.streams = [giving(*range(1, 9))]
    together = threading.Barrier(4)
    done: list[int] = []
    with blocking.consume("orders", prefetch=8) as consumer:

        def handle(delivery: Delivery) -> None:
            together.wait(PATIENCE_S)
            done.append(delivery.message.id)
            if len(done) == 8:
                consumer.stop()

        consumer.work(handle, concurrency=4)
    assert sorted(done) == list(range(1, 9))
    assert sorted(server.receipts("ack")) == sorted(f"r-{n}-1" for n in range(1, 9))


async def test_a_handler_that_fails_ends_nothing_but_its_own_turn(
    server: QueueServer, client: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    server.streams = [giving(1, 2, 3)]
    async with client.consume("orders") as consumer:

        async def handle(delivery: AsyncDelivery) -> None:
            match delivery.message.id:
                case 1:
                    raise KeyError("order 1")
                case 2:
                    await delivery.nack(delay=60, reason="not now")
                case _:
                    consumer.stop()

        await consumer.work(handle)
    assert server.settled == [
        ("nack", {"receipts": ["r-1-1"], "reason": "KeyError: 'order 1'"}),
        ("nack", {"receipts": ["r-2-1"], "delay": 60, "reason": "not now"}),
        ("ack", {"receipts": ["r-3-1"]}),
    ]
    assert "handler failed with <AsyncDelivery orders 1, attempt 1" in caplog.text
    assert "KeyError" in caplog.text


def test_a_handler_on_a_thread_that_fails_ends_nothing_either(
    server: QueueServer, blocking: Client, caplog: pytest.LogCaptureFixture
) -> None:
    server.streams = [giving(1, 2)]
    server.overrides = {"nack": answer(503, problem(503, "unavailable"))}
    with blocking.consume("orders") as consumer:

        def handle(delivery: Delivery) -> None:
            if delivery.message.id == 1:
                raise KeyError("order 1")
            consumer.stop()

        consumer.work(handle)
    assert server.receipts("ack") == ["r-2-1"], "what could not be nacked must not be acked"
    assert "handler failed" in caplog.text


@pytest.mark.parametrize("raise_lost", [False, True])
async def test_a_lost_lease_does_not_end_work(
    server: QueueServer, client: AsyncClient, raise_lost: bool
) -> None:
    server.streams = [giving(1, 2)]
    server.status = {"r-1-1": "lease_expired"}
    async with client.consume("orders", raise_lost=raise_lost) as consumer:

        async def handle(delivery: AsyncDelivery) -> None:
            if delivery.message.id == 2:
                consumer.stop()

        await consumer.work(handle)
    assert server.receipts("ack") == ["r-1-1", "r-2-1"]


async def test_work_ends_with_an_error_no_patience_mends(server: QueueServer, client: AsyncClient) -> None:
    server.streams = [lambda e: e.send(answer(404, problem(404, "subscription_not_found")))]

    async def handle(delivery: AsyncDelivery) -> None: ...

    with pytest.raises(NotFound):
        await client.work("orders", handle, concurrency=3)
    with pytest.raises(ValueError):
        await client.work("orders", handle, concurrency=0)


def test_work_on_threads_ends_with_such_an_error_too(server: QueueServer, blocking: Client) -> None:
    server.streams = [giving(1, 2)]
    server.overrides = {"ack": answer(403, problem(403, "forbidden"))}
    with pytest.raises(Forbidden):
        blocking.work("orders", lambda delivery: None, concurrency=3)
    with pytest.raises(ValueError):
        blocking.work("orders", lambda delivery: None, concurrency=0)


async def test_work_that_is_cancelled_cancels_its_handlers(server: QueueServer, client: AsyncClient) -> None:
    server.streams = [giving(1, 2, 3)]
    busy = asyncio.Semaphore(0)
    seen: list[str] = []

    async def handle(delivery: AsyncDelivery) -> None:
        busy.release()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(delivery.receipt)
            raise

    working = asyncio.create_task(client.work("orders", handle, concurrency=2))
    for _ in range(2):
        await busy.acquire()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await in_time(working)
    assert sorted(seen) == ["r-1-1", "r-2-1"]
    await wait_for(server, lambda: server.left == 1)
    (released,) = server.bodies("release")
    assert sorted(released["receipts"]) == ["r-1-1", "r-2-1", "r-3-1"]
    assert [verb for verb, _ in server.settled] == ["release"]


def test_work_on_threads_that_is_interrupted_finishes_what_is_in_hand(
    server: QueueServer, blocking: Client
) -> None:
    server.streams = [giving(1, 2, 3)]
    main = threading.main_thread().ident
    done: list[int] = []
    with blocking.consume("orders") as consumer:

        def handle(delivery: Delivery) -> None:
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)
            while not consumer._member._stopped:
                pass
            done.append(delivery.message.id)

        with pytest.raises(KeyboardInterrupt):
            consumer.work(handle)
        assert done == [1]
    assert server.receipts("ack") == ["r-1-1"]


async def test_work_reads_two_ahead_for_each_hand_unless_told(
    server: QueueServer, client: AsyncClient, raw_server: RawServer
) -> None:
    async def handle(delivery: AsyncDelivery) -> None: ...

    for options in ({}, {"prefetch": 3}):
        working = asyncio.create_task(client.work("orders", handle, concurrency=8, **options))  # type: ignore[arg-type]
        opened = server.opened
        await wait_for(server, lambda opened=opened: server.opened > opened)  # type: ignore[misc]
        await cancel(working)
    assert [dict(seen.params)["prefetch"] for seen in raw_server.seen] == ["16", "3"]


def test_one_that_cannot_be_opened_leaves_no_thread(server: QueueServer, blocking: Client) -> None:
    server.streams = [lambda exchange: exchange.send(answer(404, problem(404, "subscription_not_found")))]
    consumer = blocking.consume("nothing")
    with pytest.raises(NotFound):
        consumer.__enter__()
    # By name: the server's own threads come and go meanwhile.
    assert "gapless nothing" not in {thread.name for thread in threading.enumerate()}


FROZEN = """
import threading
from gapless import Client

consumer = Client().consume("orders")
held = threading.Event()

def hold():
    with consumer._member._news:
        held.set()
        threading.Event().wait()

threading.Thread(target=hold, daemon=True).start()
held.wait()
"""


def test_the_end_of_a_process_waits_for_no_thread_that_holds_a_lock() -> None:
    """The end of the interpreter freezes daemon threads, with whatever they hold."""
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(gapless.__path__[0])}
    subprocess.run([sys.executable, "-c", FROZEN], check=True, timeout=PATIENCE_S, env=environment)
