"""Consuming over real sockets: what a block does at its end, and what a lost lease or stream means."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import httpx
import pytest
from gapless import (
    AsyncClient,
    Forbidden,
    Gap,
    InvalidRequest,
    LeaseLost,
    NotFound,
    ProtocolError,
    RetryPolicy,
    Unreachable,
)

from tests.client.faces import Face
from tests.client.model import deliveries, delivery, goodbye, problem
from tests.client.queue_server import QueueServer, giving, stream
from tests.client.raw_server import Exchange, RawServer, answer, chunks
from tests.patience import PATIENCE_S, eventually, wait_until

ONE_TRY = RetryPolicy(attempts=1)


@pytest.fixture
def server(raw_server: RawServer) -> QueueServer:
    return QueueServer(raw_server)


def ids(found: list[Any]) -> list[int]:
    return [one.message.id for one in found]


def test_a_block_acks_at_its_end(face: Face, server: QueueServer) -> None:
    server.streams = [giving(3, 5)]
    face.connect(server.url)
    consumer = face.open("consume", "orders", prefetch=2)
    first, second = face.take(consumer, 2)
    assert (first.subscription, first.message.id, first.attempt, first.receipt) == ("orders", 3, 1, "r-3-1")
    assert first.deadline.tzinfo is not None
    face.block(first, lambda delivery: server.bodies("ack") == [] or pytest.fail("too early"))
    assert server.receipts("ack") == ["r-3-1"]
    face.block(second)
    assert server.receipts("ack") == ["r-3-1", "r-5-1"]
    assert "settled" in repr(first)
    assert not first.lost
    assert server.bodies("nack") == []


def test_a_block_that_raises_nacks_with_the_reason_and_raises(face: Face, server: QueueServer) -> None:
    def fail(delivery: Any) -> None:
        raise KeyError("no such order \0 \ud800" + "x" * 2000)

    server.streams = [giving(3)]
    face.connect(server.url)
    (delivery,) = face.take(face.open("consume", "orders"), 1)
    with pytest.raises(KeyError):
        face.block(delivery, fail)
    (nack,) = server.bodies("nack")
    assert nack["receipts"] == ["r-3-1"]
    assert nack["reason"].startswith("KeyError: 'no such order")
    assert len(nack["reason"]) == 1000
    assert set(nack) == {"receipts", "reason"}
    assert server.bodies("ack") == []


@pytest.mark.parametrize(
    ("verb", "options", "body"),
    [
        ("ack", {}, {}),
        ("nack", {}, {}),
        ("nack", {"delay": 0, "reason": "later"}, {"delay": 0, "reason": "later"}),
        ("nack", {"dead_letter": True}, {"dead_letter": True}),
        ("extend", {}, {}),
        ("extend", {"ack_wait": 90}, {"ack_wait": 90}),
    ],
)
def test_a_delivery_is_settled_by_hand(
    face: Face, server: QueueServer, verb: str, options: dict[str, Any], body: dict[str, Any]
) -> None:
    server.streams = [giving(3)]
    face.connect(server.url)
    (delivery,) = face.take(face.open("consume", "orders"), 1)
    before = delivery.deadline
    settled = face.settle(delivery, verb, **options)
    assert settled.status in ("acked", "nacked", "extended")
    assert server.settled == [(verb, {"receipts": ["r-3-1"], **body})]
    assert (delivery.deadline > before) == (verb == "extend")
    face.block(delivery)
    assert server.receipts("ack") == (["r-3-1"] if verb in ("ack", "extend") else [])


def test_what_became_of_it_is_told_not_raised(face: Face, server: QueueServer) -> None:
    server.streams = [giving(3, 5)]
    server.status = {"r-3-1": "lease_expired", "r-5-1": "unknown"}
    face.connect(server.url)
    late, settled_before = face.take(face.open("consume", "orders"), 2)
    assert face.settle(late, "ack").status == "lease_expired"
    assert face.settle(settled_before, "ack").status == "unknown"
    assert (late.lost, settled_before.lost) == (True, False)


@pytest.mark.parametrize("asked", [False, True])
def test_an_ack_that_came_too_late_is_raised_only_if_asked(
    face: Face, server: QueueServer, asked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server.streams = [giving(3)]
    server.status = {"r-3-1": "lease_expired"}
    face.connect(server.url)
    (delivery,) = face.take(face.open("consume", "orders", raise_lost=asked), 1)
    if asked:
        with pytest.raises(LeaseLost) as caught:
            face.block(delivery)
        assert caught.value.receipt == "r-3-1"
    else:
        face.block(delivery)
    assert delivery.lost
    assert "lease of message 3 of orders lost: it ended before it was settled" in caplog.text


def test_a_lease_of_thousands_of_years_does_not_end_the_keeping_of_others(
    face: Face, server: QueueServer
) -> None:
    """No lock can be waited for so long."""
    held = threading.Event()

    def script(exchange: Exchange) -> None:
        stream(deliveries(3, lease_seconds=7000 * 365 * 86_400.0), hold=False)(exchange)
        held.wait(PATIENCE_S)
        exchange.send(chunks(deliveries(5, lease_seconds=0.6), end=False))
        exchange.hold()

    def hold(delivery: Any) -> None:
        held.set()
        server.wait_for(lambda: server.receipts("extend").count("r-5-1") > 1)

    server.streams = [script]
    server.lease_seconds = 0.6
    face.connect(server.url, real_time=True)
    (kept,) = face.take(face.open("consume", "orders"), 1)
    face.block(kept, hold)


def test_leases_are_kept_alive_in_blocks_and_while_they_wait(face: Face, server: QueueServer) -> None:
    """Leases of 0.6 s, held for three of their lengths. They are extended late where the machine is slow."""
    server.streams = [giving(1, 2, 3, lease_seconds=0.6)]
    server.lease_seconds = 0.6
    face.connect(server.url, real_time=True)
    consumer = face.open("consume", "orders")
    (in_block,) = face.take(consumer, 1)

    calls: list[list[str]] = []

    def hold(delivery: Any) -> None:
        server.wait_for(lambda: server.receipts("extend").count("r-1-1") >= 6)
        calls.extend(body["receipts"] for body in server.bodies("extend"))

    face.block(in_block, hold)
    assert not in_block.lost
    # Those that wait in the client come along in the same calls.
    for receipt in ("r-2-1", "r-3-1"):
        assert sum({"r-1-1", receipt} <= set(call) for call in calls) >= 5
    assert sum("r-1-1" not in call for call in calls) <= 2
    by_hand, waiting = face.take(consumer, 2)
    asked = len(server.bodies("extend"))
    face.block(waiting, lambda d: server.wait_for(lambda: len(server.bodies("extend")) >= asked + 3))
    # One call may have been under way when they were taken.
    later = [body["receipts"] for body in server.bodies("extend")[asked + 1 :]]
    assert {tuple(call) for call in later} == {("r-3-1",)}, "what is handed out is the caller's"
    assert not by_hand.lost


@pytest.mark.parametrize("asked", [False, True])
def test_a_lease_lost_amid_a_block_is_told_to_it(face: Face, server: QueueServer, asked: bool) -> None:
    server.streams = [giving(1, lease_seconds=0.4)]
    server.status = {"r-1-1": "lease_expired"}
    face.connect(server.url, real_time=True)
    (delivery,) = face.take(face.open("consume", "orders", raise_lost=asked), 1)

    def watch(delivery: Any) -> None:
        server.wait_for(lambda: len(server.bodies("extend")) > 0)
        wait_until(lambda: delivery.lost)

    if asked:
        with pytest.raises(LeaseLost):
            face.block(delivery, watch)
    else:
        face.block(delivery, watch)
    assert len(server.bodies("extend")) == 1, "there is nothing left to extend"
    assert server.receipts("ack") == ["r-1-1"], "it is tried all the same"


@pytest.mark.parametrize("believed", ["lease_expired", "acked"])
def test_a_lost_stream_loses_its_leases_and_brings_them_again(
    face: Face, server: QueueServer, believed: str
) -> None:
    cut = threading.Event()

    def cut_when_told(exchange: Exchange) -> None:
        stream(deliveries(1, 2), hold=False)(exchange)
        cut.wait(PATIENCE_S)

    server.streams = [cut_when_told, giving(1, 2, attempt=2)]
    server.status = {"r-1-1": believed}
    face.connect(server.url)
    consumer = face.open("consume", "orders", heartbeat=PATIENCE_S)
    (first,) = face.take(consumer, 1)

    def work_on(delivery: Any) -> None:
        cut.set()
        wait_until(lambda: delivery.lost)

    face.block(first, work_on)
    assert server.receipts("ack") == ["r-1-1"]
    # Where the service had not noticed yet, its answer has the last word.
    assert first.lost is (believed != "acked")
    again = face.take(consumer, 2)
    assert [(one.message.id, one.attempt) for one in again] == [(1, 2), (2, 2)]
    assert server.opened == 2


def test_an_ack_nobody_answers_is_a_lost_lease_and_the_loop_goes_on(face: Face, server: QueueServer) -> None:
    server.streams = [giving(1, 2)]
    server.overrides = {"ack": answer(503, problem(503, "unavailable", retryable=True))}
    face.connect(server.url, retry=ONE_TRY)
    first, second = face.take(face.open("consume", "orders"), 2)
    face.block(first)
    assert first.lost
    with pytest.raises(Exception, match="unavailable"):
        face.settle(second, "ack")
    server.overrides = {}
    face.block(second)
    assert not second.lost


def test_an_ack_that_is_refused_for_good_is_raised(face: Face, server: QueueServer) -> None:
    server.streams = [giving(1)]
    server.overrides = {"ack": answer(403, problem(403, "forbidden"))}
    face.connect(server.url)
    (delivery,) = face.take(face.open("consume", "orders"), 1)
    with pytest.raises(Forbidden):
        face.block(delivery)


@pytest.mark.parametrize("refusal", [(403, "forbidden"), (503, "unavailable")])
def test_a_nack_that_fails_does_not_hide_why_it_was_sent(
    face: Face, server: QueueServer, refusal: tuple[int, str]
) -> None:
    def fail(delivery: Any) -> None:
        raise KeyError("the order")

    server.streams = [giving(1)]
    server.overrides = {"nack": answer(refusal[0], problem(*refusal))}
    face.connect(server.url, retry=ONE_TRY)
    (delivery,) = face.take(face.open("consume", "orders"), 1)
    with pytest.raises(KeyError, match="the order"):
        face.block(delivery, fail)
    assert delivery.lost


def test_refusals_are_raised_by_the_first_read_and_by_entering(face: Face, server: QueueServer) -> None:
    server.streams = [lambda e: e.send(answer(404, problem(404, "subscription_not_found")))]
    face.connect(server.url)
    consumer = face.open("consume", "orders")
    with pytest.raises(NotFound):
        face.take(consumer, 1)
    assert face.take(consumer) == []
    with pytest.raises(NotFound):
        face.enter(face.open("consume", "orders"))
    assert face.time.waits == []


async def test_one_that_is_refused_leaves_no_task(server: QueueServer) -> None:
    server.streams = [lambda exchange: exchange.send(answer(404, problem(404, "subscription_not_found")))]
    async with AsyncClient(server.url) as client:
        with pytest.raises(NotFound):
            await anext(client.consume("nothing"))
        # One that waits for ever and that nobody refers to is destroyed by a collection, which asyncio logs.
        (left,) = await eventually(lambda: len(asyncio.all_tasks()) == 1 and asyncio.all_tasks())
    assert left is asyncio.current_task()


def test_a_subscription_deleted_under_it_ends_it(face: Face, server: QueueServer) -> None:
    gone = answer(404, problem(404, "subscription_not_found"))
    server.streams = [stream(deliveries(1), goodbye("subscription_deleted")), lambda e: e.send(gone)]
    face.connect(server.url)
    with pytest.raises(NotFound):
        face.take(face.open("consume", "orders"))
    assert face.time.waits == []


@pytest.mark.timeout(PATIENCE_S)  # The silent connection ends after two and a half heartbeats.
def test_goodbye_is_answered_with_a_new_connection_at_once(face: Face, server: QueueServer) -> None:
    server.streams = [stream(goodbye("shutdown")), giving(1)]
    face.connect(server.url)
    assert ids(face.take(face.open("consume", "orders", heartbeat=PATIENCE_S), 1)) == [1]
    assert face.time.waits == []


def test_a_service_that_is_not_there_yet_is_waited_for(face: Face, server: QueueServer) -> None:
    away = answer(503, problem(503, "unavailable"), Retry_After="4")
    server.streams = [lambda e: None, lambda e: e.send(away), stream(hold=False), giving(1)]
    face.connect(server.url)
    assert ids(face.take(face.open("consume", "orders"), 1)) == [1]
    assert face.time.waits == pytest.approx([0.5, 5.0, 2.0])


def test_silence_is_a_dead_connection(face: Face, server: QueueServer) -> None:
    """Half a second of silence. Where the machine is slower, a connection may end before its message came."""

    def give_again(exchange: Exchange) -> None:
        giving(1, attempt=server.opened)(exchange)

    server.streams = [give_again]
    face.connect(server.url)
    consumer = face.open("consume", "orders", heartbeat=0.2)
    first, second = face.take(consumer, 2)
    assert first.lost
    assert first.attempt < second.attempt <= server.opened


def test_entering_returns_when_the_stream_stands(face: Face, server: QueueServer) -> None:
    face.connect(server.url)
    consumer = face.open("consume", "orders", prefetch=7, heartbeat=9)
    assert "not connected" in repr(consumer)
    face.enter(consumer)
    assert server.opened == 1
    assert "open" in repr(consumer)
    face.close(consumer)
    face.close(consumer)
    assert "closed" in repr(consumer)
    assert face.take(consumer) == []
    server.wait_for(lambda: server.left == 1)


def test_one_that_was_never_opened_can_be_closed(face: Face, server: QueueServer) -> None:
    face.connect(server.url)
    consumer = face.open("consume", "orders")
    face.close(consumer)
    assert face.take(consumer) == []
    assert server.opened == 0


def test_stopping_ends_the_iteration_and_leaves_what_is_in_hand(face: Face, server: QueueServer) -> None:
    server.streams = [giving(1, 2)]
    face.connect(server.url)
    consumer = face.open("consume", "orders")
    (first,) = face.take(consumer, 1)
    consumer.stop()
    assert face.take(consumer) == []
    assert "stopped" in repr(consumer)
    face.block(first)
    assert not first.lost
    assert server.receipts("ack") == ["r-1-1"]


def test_closing_ends_the_leases_that_are_left(
    face: Face, server: QueueServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.streams = [giving(1, 2, 3)]
    face.connect(server.url)
    consumer = face.open("consume", "orders")
    (first,) = face.take(consumer, 1)
    face.close(consumer)
    server.wait_for(lambda: server.left == 1)
    assert first.lost
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warned == ["lease of message 1 of orders lost: the consumer ended"]


def test_a_transaction_settles_deliveries(face: Face, server: QueueServer) -> None:
    server.streams = [giving(1, 2)]
    face.connect(server.url)
    first, second = face.take(face.open("consume", "orders"), 2)

    def transform(delivery: Any) -> None:
        pass

    committed = face.call("transaction", [("invoices", {"n": 1})], [first, second, ("other", "r-9")])
    assert committed.acked == 3
    ((verb, body),) = server.settled
    assert verb == "transactions"
    assert body == {
        "publish": [{"channel": "invoices", "data": {"n": 1}}],
        "ack": [
            {"subscription": "orders", "receipts": ["r-1-1", "r-2-1"]},
            {"subscription": "other", "receipts": ["r-9"]},
        ],
    }
    face.block(first, transform)
    assert server.bodies("ack") == []


def test_deliveries_are_pulled_and_settled_by_call(face: Face, server: QueueServer) -> None:
    server.overrides = {"pull": answer(200, {"deliveries": [delivery(1, attempt=2)]})}
    face.connect(server.url)
    (pulled,) = face.call("pull", "orders", 10, wait=20)
    assert (pulled.subscription, pulled.receipt, pulled.attempt) == ("orders", "r-1-2", 2)
    assert server.bodies("pull") == [{"max": 10, "wait": 20}]
    server.overrides = {"pull": answer(200, {"deliveries": [{**delivery(2), "receipt": None}]})}
    with pytest.raises(ProtocolError, match="not a delivery"):
        face.call("pull", "orders", ack="auto")
    assert server.bodies("pull")[1:] == [{"max": 1, "wait": 0.0, "ack": "auto"}]
    server.overrides = {}
    server.status = {"r-0": "unknown"}
    assert [one.status for one in face.call("ack", "orders", [pulled, "r-0"])] == ["acked", "unknown"]
    assert face.call("nack", "orders", ["r-5"], delay=0, reason="x")[0].status == "nacked"
    assert face.call("extend", "orders", ["r-5"], ack_wait=3)[0].deadline is not None
    assert server.settled[2:] == [
        ("ack", {"receipts": ["r-1-2", "r-0"]}),
        ("nack", {"receipts": ["r-5"], "delay": 0, "reason": "x"}),
        ("extend", {"receipts": ["r-5"], "ack_wait": 3}),
    ]


def test_a_pull_tells_what_was_lost(
    face: Face, server: QueueServer, caplog: pytest.LogCaptureFixture
) -> None:
    """What is called with it may fail: deliveries are not its to lose."""
    lost = {"channel": "orders.eu", "first_seq": 8, "missed": 7}
    server.overrides = {"pull": answer(200, {"deliveries": [delivery(1)], "gaps": [lost]})}
    face.connect(server.url)
    heard: list[Gap] = []

    def hear(gap: Gap) -> None:
        heard.append(gap)
        raise RuntimeError

    assert len(face.call("pull", "orders", on_gap=hear)) == 1
    assert heard == [Gap("orders.eu", 8, 7)]
    assert len(face.call("pull", "orders")) == 1
    assert caplog.messages[-1] == f"orders: {heard[0]}"
    for wrong in (5, [5], [{"channel": "orders.eu"}]):
        server.overrides = {"pull": answer(200, {"deliveries": [], "gaps": wrong})}
        with pytest.raises(ProtocolError):
            face.call("pull", "orders")


def test_a_pull_waits_longer_than_the_service_does(face: Face, server: QueueServer) -> None:
    patience: list[float] = []

    def pull(request: httpx.Request) -> httpx.Response:
        patience.append(request.extensions["timeout"]["read"])
        return httpx.Response(200, json={"deliveries": []})

    face.connect(handler=pull, timeout=3)
    assert face.call("pull", "orders", wait=20) == face.call("pull", "orders") == []
    assert patience == [23, 3]
    # It is what ends the wait for an answer that is held back.
    server.overrides = {"pull": answer(200, {"deliveries": []})}
    server.gates = {"pull": threading.Event()}
    face.connect(server.url, timeout=0.2, retry=ONE_TRY)
    with pytest.raises(Unreachable):
        face.call("pull", "orders")
    server.gates["pull"].set()


def test_an_invalid_settlement_is_raised(face: Face, server: QueueServer) -> None:
    server.streams = [giving(1)]
    server.overrides = {"nack": answer(422, problem(422, "invalid_request"))}
    face.connect(server.url)
    (delivery,) = face.take(face.open("consume", "orders"), 1)
    with pytest.raises(InvalidRequest):
        face.settle(delivery, "nack", delay=5, dead_letter=True)
