"""Streams of deliveries: what they carry, what their end leaves behind, and who cuts them off."""

from __future__ import annotations

import asyncio
import socket
from urllib.parse import urlsplit

from tests.conftest import Serve
from tests.integration.queueing import WAIT_S, Delivery, Host, Queue, attempts, data, deliveries
from tests.patience import PATIENCE_S, cancel, eventually
from tests.sse import Block, Stream

Both = tuple[Host, Host]
DAY_S = 86_400


async def goodbye(stream: Stream) -> str:
    """Why the server ended the stream, after whatever else it sent."""
    last = (await stream.until("goodbye"))[-1]
    assert await stream.block() is None
    return str(last.json["reason"])


async def test_what_a_stream_looks_like(hosts: Both) -> None:
    one, _ = hosts
    queue = await one.subscribe("looks", ack_wait=60)
    await one.publish("looks", {"a": 1}, {"a": 2}, key=None)
    async with queue.consume() as stream:
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        assert stream.response.headers["cache-control"] == "no-cache, no-transform"
        assert stream.response.headers["x-accel-buffering"] == "no"
        assert stream.response.headers["x-request-id"]
        first, second = [await stream.block() for _ in range(2)]
        assert isinstance(first, Block)
        assert isinstance(second, Block)
        assert (first.event, first.id, first.retry) == ("delivery", None, "1000")
        assert (second.event, second.id, second.retry) == ("delivery", None, None)
        assert set(first.json) == {"receipt", "attempt", "deadline", "message"}
        assert (first.json["attempt"], first.json["message"]["data"]) == (1, {"a": 1})
        assert first.json["deadline"] > first.json["message"]["created_at"]
        assert await queue.ack(first.json, second.json) == ["acked", "acked"]


async def test_what_a_request_may_say(hosts: Both) -> None:
    one, _ = hosts
    queue = await one.subscribe("says")
    for query in ("prefetch=0", "prefetch=1001", "prefetch=x", "heartbeat=1", "other=1"):
        await one.ask("GET", f"{queue.path}/consume?{query}", 422)
    await one.ask("GET", "/v1/subscriptions/nobody/consume", 404)
    head = await one.http.head(f"{queue.path}/consume?prefetch=7")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"].startswith("text/event-stream")
    missing = await one.http.head("/v1/subscriptions/nobody/consume")
    assert (missing.status_code, missing.content) == (404, b"")


async def test_acks_at_either_host_make_room(hosts: Both) -> None:
    """The stream is at one host: what is acked at the other must reach it."""
    one, two = hosts
    queue = await one.subscribe("room", ack_wait=DAY_S)
    await one.publish("room", *range(20))
    async with queue.consume(prefetch=5) as stream:
        given = await deliveries(stream, 5)
        for number in range(15):
            at = (one, two)[number % 2]
            assert (await queue.stats())["in_flight"] == 5
            assert await queue.at(at).ack(given[number]) == ["acked"]
            given += await deliveries(stream, 1)
    assert data(given) == list(range(20))


async def test_nacks_and_transactions_make_room_too(hosts: Both) -> None:
    one, two = hosts
    queue = await one.subscribe("room.more", ack_wait=DAY_S)
    await one.publish("room.more", *range(4))
    async with queue.consume(prefetch=1) as stream:
        (first,) = await deliveries(stream, 1)
        await queue.at(two).nack(first, delay=60)
        (second,) = await deliveries(stream, 1)
        await queue.at(two).nack(second, dead_letter=True)
        (third,) = await deliveries(stream, 1)
        ack = [{"subscription": "room.more", "receipts": [third["receipt"]]}]
        await two.ask("POST", "/v1/transactions", 201, json={"ack": ack})
        (fourth,) = await deliveries(stream, 1)
    assert data([first, second, third, fourth]) == [0, 1, 2, 3]


async def test_what_a_member_held_comes_again_at_once_and_first(hosts: Both) -> None:
    one, two = hosts
    queue = await one.subscribe("held", ack_wait=DAY_S)
    await one.publish("held", *range(1, 9))
    async with queue.consume(prefetch=5) as stream:
        given = await deliveries(stream, 5)
        assert data(given) == [1, 2, 3, 4, 5]
        await queue.pause(True)
        await queue.ack(*given[:3])
    await queue.pause(False)
    async with queue.at(two).consume(prefetch=5) as stream:
        again: list[Delivery] = []
        while len(again) < 5:  # those in doubt come one at a time, each when the one before is settled
            again += await deliveries(stream, 1)
            for old in given[3:][len(again) - 1 : len(again)]:
                assert await queue.ack(old) == ["lease_expired"]
            await queue.at(two).ack(again[-1])
    assert (data(again), attempts(again)) == ([4, 5, 6, 7, 8], [2, 2, 1, 1, 1])


async def test_members_share_and_one_that_dies_leaves_the_rest_to_others(hosts: Both) -> None:
    one, two = hosts
    queue = await one.subscribe("shared", ordering="none", ack_wait=DAY_S)
    async with queue.consume(prefetch=3) as left, queue.at(two).consume(prefetch=3) as right:
        await one.publish("shared", *range(6))
        seen = data(await deliveries(left, 3)) + data(given := await deliveries(right, 3))
        assert sorted(seen) == list(range(6))
        await left.response.aclose()
        await queue.ack(*given)
        assert sorted(data(await deliveries(right, 3))) == sorted(set(range(6)) - set(data(given)))


async def test_order_of_a_key_across_members(hosts: Both) -> None:
    one, two = hosts
    queue = await one.subscribe("lanes", ack_wait=DAY_S)
    seen: list[int] = []

    async def work(at: Queue) -> None:
        async with at.consume(prefetch=4) as stream:
            while len(seen) < 40:
                (delivery,) = await deliveries(stream, 1)
                seen.append(delivery["message"]["data"])
                await at.ack(delivery)

    members = [asyncio.create_task(work(queue.at(host))) for host in (one, two, one)]
    await one.publish("lanes", *range(40), key="k")
    await eventually(lambda: len(seen) == 40)
    await cancel(*members)
    assert seen == list(range(40))


async def test_a_silent_stream_beats(hosts: Both) -> None:
    one, _ = hosts
    queue = await one.subscribe("beats")
    async with queue.consume(heartbeat=5) as stream:
        reading = asyncio.create_task(stream.block())
        await eventually(lambda: stream.comments)
        await one.publish("beats", 1)
        block = await reading
        assert block is not None
        assert (block.event, block.retry) == ("delivery", "1000")


async def test_a_deleted_subscription_says_goodbye_at_both_hosts(hosts: Both) -> None:
    one, two = hosts
    queue = await one.subscribe("deleted", ack_wait=DAY_S)
    await one.publish("deleted", 1)
    async with queue.consume() as here, queue.at(two).consume() as there:
        pulling = asyncio.create_task(two.http.post(f"{queue.path}/pull", json={"max": 9, "wait": WAIT_S}))
        await one.ask("DELETE", queue.path, 204)
        assert [await goodbye(stream) for stream in (here, there)] == ["subscription_deleted"] * 2
        answer = await pulling
        assert answer.status_code == 404 or answer.json()["deliveries"]
    # Under the same name another one may follow, of which no host remembers the former.
    again = await two.subscribe("deleted")
    async with again.at(one).consume() as stream:
        (delivery,) = await deliveries(stream, 1)
    assert (delivery["attempt"], delivery["message"]["data"]) == (1, 1)


async def test_a_paused_stream_waits(hosts: Both) -> None:
    one, two = hosts
    queue = await one.subscribe("pausing", ack_wait=DAY_S)
    async with queue.at(two).consume(prefetch=2) as stream:
        await queue.pause(True)
        await one.publish("pausing", 1, 2, 3)
        assert await queue.pull() == []
        assert (await queue.stats())["in_flight"] == 0
        await queue.pause(False)
        assert data(await deliveries(stream, 2)) == [1, 2]


async def test_a_stream_goes_where_its_subscription_is_moved(hosts: Both) -> None:
    one, two = hosts
    queue = await one.subscribe("moved", ack_wait=DAY_S)
    await one.publish("moved", *range(6))
    async with queue.consume(prefetch=4) as stream:
        before = await deliveries(stream, 4)
        await one.ask("POST", f"{queue.path}/seek", json={"to": "earliest"})
        again = await deliveries(stream, 4)
        assert (data(again), attempts(again)) == ([0, 1, 2, 3], [1] * 4)
        assert set(await queue.ack(*before)) <= {"lease_expired", "unknown"}
        await queue.at(two).ack(*again)
        assert data(await deliveries(stream, 2)) == [4, 5]


async def test_members_that_leave_while_they_come_are_forgotten(hosts: Both) -> None:
    """Their connection is gone before the stream has begun: nothing may be dealt to them."""
    one, _ = hosts
    queue = await one.subscribe("leaving", ack_wait=DAY_S, max_deliver=1)
    before = await eventually(lambda: _gauge(one))
    where = urlsplit(one.url)
    for _ in range(60):
        with socket.create_connection((where.hostname, where.port or 80)) as connection:
            connection.sendall(
                b"GET %b/consume?prefetch=5 HTTP/1.1\r\nHost: localhost\r\n\r\n" % queue.path.encode()
            )
    await one.publish("leaving", *range(5))
    taken = await queue.take(5)
    assert sorted(data(taken)) == list(range(5))
    await queue.ack(*taken)
    await eventually(lambda: _gauge(one, at_most=before[0]))
    assert await one.letters(subscription="leaving") == []


async def _gauge(host: Host, at_most: float = float("inf")) -> list[float]:
    """The number of streams of deliveries, in a list, once it is small enough."""
    value = await host.metric("gapless_members")
    return [value] if value <= at_most else []


# --- ends


async def test_a_graceful_stop_says_goodbye_and_releases_leases(hosts: Both, serve: Serve) -> None:
    service = serve()
    async with Host(service.url) as host, Host(serve().url) as other:
        queue = await host.subscribe("stops", ack_wait=DAY_S, max_deliver=1)
        await host.publish("stops", 1, 2, 3)
        async with queue.consume(prefetch=1) as stream, queue.consume(prefetch=1) as another:
            given = await deliveries(stream, 1) + await deliveries(another, 1)
            elsewhere = queue.at(other)
            held = await queue.take(1)
            asked = {"max": 9, "wait": WAIT_S}
            waiting = asyncio.create_task(host.http.post(f"{queue.path}/pull", json=asked))
            await eventually(lambda: _in_flight(elsewhere, 3))
            service.process.terminate()
            assert [await goodbye(each) for each in (stream, another)] == ["shutdown", "shutdown"]
        assert (await waiting).json() == {"deliveries": []}
        again = await elsewhere.take(2)
        assert (data(again), attempts(again)) == ([1, 2], [2, 2])
        # What was pulled is not tied to a connection, nor to a host.
        assert await elsewhere.ack(*held, *given) == ["acked", "lease_expired", "lease_expired"]
        assert await asyncio.to_thread(service.process.wait, PATIENCE_S) == 0


async def _in_flight(queue: Queue, count: int) -> bool:
    return bool((await queue.stats())["in_flight"] == count)


async def test_what_was_streamed_by_a_killed_host_comes_when_its_lease_ends(serve: Serve) -> None:
    service, other = serve(), serve()
    async with Host(service.url) as host, Host(other.url) as rest:
        queue = await host.subscribe("killed", ack_wait=1, max_deliver=0)
        await host.publish("killed", 1)
        async with queue.consume() as stream:
            (first,) = await deliveries(stream, 1)
            service.kill()
        (again,) = await queue.at(rest).take(1)
        assert again["attempt"] > first["attempt"]


async def test_a_member_that_takes_nothing_is_cut_off(serve: Serve) -> None:
    # The other host is for who reads and may be late.
    service, other = serve(GAPLESS_SLOW_READER_TIMEOUT="1"), serve()
    async with Host(service.url) as host, Host(other.url) as rest:
        queue = await rest.subscribe("slow", ordering="none", ack_wait=DAY_S)
        for number in range(16):
            await rest.publish("slow", str(number) * 400_000)
        where = urlsplit(service.url)
        with socket.socket() as idle:
            idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            idle.connect((where.hostname, where.port))
            idle.sendall(
                b"GET /v1/subscriptions/slow/consume?prefetch=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
            )
            cut = 'gapless_streams_cut_total{reason="slow_consumer"}'
            await eventually(lambda: host.metric(cut))
            taken = await queue.take(16)
        assert sorted(d["message"]["seq"] for d in taken) == list(range(1, 17))
        assert {2} <= set(attempts(taken)) <= {1, 2}


async def test_nobody_settles_for_a_subscription_that_is_not_there(hosts: Both) -> None:
    one, _ = hosts
    for verb in ("ack", "nack", "release", "extend"):
        await one.ask("POST", f"/v1/subscriptions/nobody/{verb}", 404, json={"receipts": ["x"]})
    await one.ask("POST", "/v1/subscriptions/nobody/pull", 404)
