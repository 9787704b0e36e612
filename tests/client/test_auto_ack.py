"""Consuming with `ack="auto"`: each message is handed out at most once, and a slow receiver loses nothing."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from uuid import uuid4

import pytest
from gapless import AsyncClient, Client, NotFound, ProtocolError

from tests.client.cutting_proxy import CuttingProxy
from tests.client.faces import Face
from tests.client.model import delivery, message, problem
from tests.client.raw_server import Exchange, RawServer, Script, answer, replies
from tests.patience import PATIENCE_S, cancel, in_time, wait_until


@pytest.fixture
def name(server_url: str) -> str:
    """A subscription of its own, and the channel of the same name."""
    made = f"auto{uuid4().hex[:12]}"
    with Client(server_url) as client:
        client.subscriptions.create(made, [made], start="earliest", ordering="none")
    return made


def publish(server_url: str, name: str, *data: Any) -> None:
    with Client(server_url) as client:
        client.publish_many(name, list(data))


def counts(server_url: str, name: str) -> tuple[int, int, int]:
    """How many are acked, in flight, and not handed out yet."""
    with Client(server_url) as client:
        stats = client.subscriptions.get(name).stats
    assert stats is not None
    return stats.acked, stats.in_flight, stats.lag


def datas(taken: list[Any]) -> list[Any]:
    return [one.message.data for one in taken]


# --- the real service


def test_each_comes_once_and_is_settled(face: Face, server_url: str, name: str) -> None:
    publish(server_url, name, *range(20))
    face.connect(server_url, real_time=True)
    stream = face.open("consume", name, ack="auto", prefetch=3)
    taken = face.take(stream, 20)
    assert datas(taken) == list(range(20))
    assert {(one.subscription, one.receipt, one.deadline, one.attempt) for one in taken} == {
        (name, None, None, 1)
    }
    assert counts(server_url, name) == (20, 0, 0)
    with pytest.raises(ValueError, match="settled when it was handed out"):
        face.call("ack", name, taken[:1])


def test_nothing_is_settled_ahead_of_a_slow_receiver(face: Face, server_url: str, name: str) -> None:
    """However long it works on one, the others wait in the service, and another member may have them."""
    publish(server_url, name, *range(5))
    face.connect(server_url, real_time=True)
    stream = face.open("consume", name, ack="auto")
    face.enter(stream)
    assert counts(server_url, name) == (0, 0, 5)
    for number in range(3):
        assert datas(face.take(stream, 1)) == [number]
        assert counts(server_url, name) == (number + 1, 0, 4 - number)
    face.close(stream)
    with Client(server_url) as client:
        assert datas(client.pull(name, 10)) == [3, 4]


def test_cut_connections_lose_at_most_what_was_in_transit(face: Face, server_url: str, name: str) -> None:
    done = threading.Event()

    def feed() -> None:
        number = 0
        # The last one may be lost too, and the receiver must not wait in vain.
        while wait_until(lambda: done.is_set() or counts(server_url, name)[2] == 0) and not done.is_set():
            publish(server_url, name, number, number + 1)
            number += 2

    feeding = threading.Thread(target=feed)
    with CuttingProxy(server_url, iter([150, 500, 700, 900, 1100, 50])) as proxy:
        face.connect(proxy.url)
        stream = face.open("consume", name, ack="auto")
        feeding.start()
        try:
            taken = face.take(stream, 30)
        finally:
            done.set()
            feeding.join(PATIENCE_S)
        assert proxy.cuts == 6
        face.close(stream)
    found = datas(taken)
    assert found == sorted(set(found)), "each at most once"
    acked, in_flight, _ = counts(server_url, name)
    assert (in_flight, acked - 30 <= 6) == (0, True)


def test_who_is_not_there_is_not_found(face: Face, server_url: str) -> None:
    face.connect(server_url, real_time=True)
    stream = face.open("consume", "auto.nobody", ack="auto")
    face.enter(stream)
    with pytest.raises(NotFound):
        face.take(stream, 1)


# --- bytes that a test decides


def settled(*message_ids: int, **members: Any) -> dict[str, Any]:
    """The answer to a pull."""
    made = [{"attempt": 1, "message": message(one)} for one in message_ids]
    return {"deliveries": made, **members}


def cut(data: bytes, kept: int) -> Script:
    def script(exchange: Exchange) -> None:
        exchange.send(data[:kept])

    return script


def ids(taken: list[Any]) -> list[int]:
    return [one.message.id for one in taken]


def test_what_came_whole_is_handed_out_before_it_reconnects(face: Face, raw_server: RawServer) -> None:
    half = answer(200, settled(9, 10))
    broken = answer(503, problem(503, "unavailable", retryable=True))
    raw_server.scripts = [
        *replies(answer(200, settled(1, 2, 3)), broken),
        cut(half, len(half) - 1),
        *replies(answer(200, settled()), answer(200, settled(4))),
    ]
    face.connect(raw_server.url)
    stream = face.open("consume", "orders", ack="auto", prefetch=3)
    assert ids(face.take(stream, 3)) == [1, 2, 3]
    assert len(raw_server.seen) == 1, "nothing is taken that nobody wants"
    assert ids(face.take(stream, 1)) == [4]
    assert face.time.waits == pytest.approx([0.5, 1.0, 0.1]), (
        "it backs off, and floods no one that answers at once"
    )
    assert {(seen.method, seen.path) for seen in raw_server.seen} == {
        ("POST", "/v1/subscriptions/orders/pull")
    }
    assert {seen.body for seen in raw_server.seen} == {b'{"max":3,"wait":5.0,"ack":"auto"}'}


async def test_a_cancelled_wait_leaves_nothing_that_takes(raw_server: RawServer) -> None:
    left = threading.Event()

    def script(exchange: Exchange) -> None:
        exchange.hold()
        left.set()

    raw_server.scripts = [script, *replies(answer(200, settled(1)))]
    async with AsyncClient(raw_server.url) as client:
        stream = client.consume("orders", ack="auto")
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.to_thread(raw_server.wait_for, 1)
        await cancel(waiting)
        assert await asyncio.to_thread(left.wait, PATIENCE_S)
        assert (await in_time(anext(stream))).message.id == 1
        await stream.aclose()


async def test_an_answer_is_whole_before_its_connection_ends(raw_server: RawServer) -> None:
    """Who cancels a wait then does not lose it."""

    def script(exchange: Exchange) -> None:
        exchange.send(answer(200, settled(1, 2)).replace(b"Connection: close\r\n", b""))
        exchange.hold()

    raw_server.scripts = [script]
    async with AsyncClient(raw_server.url) as client:
        stream = client.consume("orders", ack="auto", prefetch=2)
        assert [(await in_time(anext(stream))).message.id for _ in range(2)] == [1, 2]
        await stream.aclose()


def test_a_service_that_leases_is_refused(face: Face, raw_server: RawServer) -> None:
    raw_server.scripts = replies(answer(200, {"deliveries": [delivery(1)]}))
    face.connect(raw_server.url)
    with pytest.raises(ProtocolError, match="leased"):
        face.take(face.open("consume", "orders", ack="auto"), 1)


def test_gaps_are_told(face: Face, raw_server: RawServer) -> None:
    told: list[Any] = []
    missed = {"channel": "orders", "first_seq": 7, "missed": 6}
    raw_server.scripts = replies(answer(200, settled(1, gaps=[missed])))
    face.connect(raw_server.url)
    assert ids(face.take(face.open("consume", "orders", ack="auto", on_gap=told.append), 1)) == [1]
    assert [(one.channel, one.missed) for one in told] == [("orders", 6)]


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({"ack": "auto", "max_hold": 5}, TypeError, "its options are prefetch, on_gap, give_up_after, ack"),
        ({"ack": "auto", "prefetch": 0}, ValueError, "1 to 1000"),
        ({"ack": "auto", "prefetch": 1001}, ValueError, "1 to 1000"),
        ({"ack": "none"}, ValueError, '"manual" or "auto"'),
    ],
)
def test_wrong_options(face: Face, options: dict[str, Any], error: type[Exception], why: str) -> None:
    face.connect()
    with pytest.raises(error, match=why):
        face.open("consume", "orders", **options)
    with pytest.raises(TypeError, match="'ack'"):
        face.call("work", "orders", print, ack="auto")
