"""Durable subscriptions over WebSocket: members, settlements, and what a connection leaves behind."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.conftest import Serve
from tests.integration.frames import Frames
from tests.integration.queueing import Delivery, Host, Queue, attempts, data
from tests.integration.test_gate import starting
from tests.patience import PATIENCE_S, cancel, eventually

Both = tuple[Host, Host]
ACK_WAIT_S = 3600
"""Longer than any test."""


@pytest.fixture
def name() -> str:
    """A name of its own for each test: they share services."""
    return f"wsq.{uuid.uuid4().hex[:10]}"


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[Frames]:
    client = await Frames.open(url, **options)
    try:
        yield client
    finally:
        await client.close()


async def consume(client: Frames, name: str, **asked: Any) -> None:
    assert (await client.ask("consume", subscription=name, **asked))["consume"] == {}


async def take(client: Frames, count: int, name: str) -> list[Delivery]:
    """The next deliveries of one subscription."""
    found: list[Delivery] = []
    while len(found) < count:
        push = await client.push("delivery")
        assert push["subscription"] == name
        found.append(push["delivery"])
    return found


async def settle(client: Frames, verb: str, *deliveries: Delivery, **how: Any) -> list[dict[str, Any]]:
    receipts = [delivery["receipt"] for delivery in deliveries]
    results: list[dict[str, Any]] = (await client.ask(verb, receipts=receipts, **how))[verb]["results"]
    assert [result["receipt"] for result in results] == receipts
    return results


async def statuses(client: Frames, verb: str, *deliveries: Delivery, **how: Any) -> list[str]:
    return [result["status"] for result in await settle(client, verb, *deliveries, **how)]


async def made(host: Host, name: str, **definition: Any) -> Queue:
    return await host.subscribe(name, **{"ack_wait": ACK_WAIT_S, **definition})


async def _gone(queue: Queue) -> bool:
    return bool((await queue.stats())["in_flight"] == 0)


# --- deliveries


async def test_a_delivery_is_that_of_a_pull_and_an_ack_ends_it(hosts: Both, name: str) -> None:
    one, _ = hosts
    queue = await made(one, name)
    (position,) = await one.publish(name, {"a": 1}, key="k")
    async with opened(one.url) as client:
        await consume(client, name)
        push = await client.push("delivery")
        assert set(push) == {"subscription", "delivery"}
        delivery = push["delivery"]
        assert set(delivery) == {"receipt", "attempt", "deadline", "message"}
        assert delivery["message"].items() >= {**position, "data": {"a": 1}, "key": "k"}.items()
        assert delivery["deadline"] > delivery["message"]["created_at"]
        assert await statuses(client, "ack", delivery) == ["acked"]
        stats = await queue.stats()
        assert (stats["acked"], stats["lag"], stats["in_flight"]) == (1, 0, 0)
        assert await statuses(client, "ack", delivery) == ["unknown"]


async def test_prefetch_bounds_what_is_unsettled_and_a_key_keeps_its_order(hosts: Both, name: str) -> None:
    one, _ = hosts
    queue = await made(one, name)
    await one.publish(name, *range(6), key=None)
    async with opened(one.url) as client:
        await consume(client, name, prefetch=2)
        seen = await take(client, 2, name)
        for _ in range(4):
            assert (await queue.stats())["in_flight"] == 2
            await settle(client, "ack", seen[-2])
            seen += await take(client, 1, name)
        assert data(seen) == list(range(6))
        await settle(client, "ack", *seen[-2:])
        await one.publish(name, "x", "y", key="k")
        (first,) = await take(client, 1, name)
        assert (await queue.stats())["waiting"] == 1
        assert await statuses(client, "nack", first, delay=0) == ["nacked"]
        (again,) = await take(client, 1, name)
        await settle(client, "ack", again)
        assert data([first, again, *await take(client, 1, name)]) == ["x", "x", "y"]


async def test_without_a_prefetch_ten_are_handed_out(hosts: Both, name: str) -> None:
    one, _ = hosts
    queue = await made(one, name)
    await one.publish(name, *range(12), key=None)
    async with opened(one.url) as client:
        await consume(client, name, prefetch=None)
        await take(client, 10, name)
        assert (await queue.stats())["in_flight"] == 10


async def test_nacks_and_extensions_do_what_they_do_over_http(hosts: Both, name: str) -> None:
    one, _ = hosts
    queue = await made(one, name, ordering="none")
    await one.publish(name, *range(3))
    async with opened(one.url) as client:
        await consume(client, name)
        delayed, dead, kept = await take(client, 3, name)
        assert await statuses(client, "nack", delayed, delay=600, reason="later") == ["nacked"]
        (rejected,) = await settle(client, "nack", dead, dead_letter=True, reason="never")
        (letter,) = await one.letters(subscription=name)
        assert (letter["id"], letter["last_error"]) == (rejected["dead_letter"], "never")
        (shown,) = (await one.ask("GET", f"{queue.path}/messages?state=delayed"))["messages"]
        assert (shown["message"]["data"], shown["last_error"]) == (0, "later")
        (extended,) = await settle(client, "extend", kept, ack_wait=7200)
        assert extended["status"] == "extended"
        assert extended["deadline"] > kept["deadline"]
        assert await statuses(client, "extend", kept) == ["extended"]
        assert await statuses(client, "ack", kept, delayed) == ["acked", "lease_expired"]


async def test_receipts_of_both_faces_and_of_several_subscriptions_are_the_same(
    hosts: Both, name: str
) -> None:
    one, two = hosts
    left, right = await made(one, f"{name}.a"), await made(one, f"{name}.b")
    for queue in (left, right):
        await one.publish(queue.name, *range(4), key=None)
    async with opened(two.url) as client:
        for queue in (left, right):
            await consume(client, queue.name, prefetch=2)
        pushes = [await client.push("delivery") for _ in range(4)]
        mine = {
            queue.name: [push["delivery"] for push in pushes if push["subscription"] == queue.name]
            for queue in (left, right)
        }
        assert [len(given) for given in mine.values()] == [2, 2]
        assert await left.ack(mine[left.name][0]) == ["acked"]
        assert await right.nack(mine[right.name][0], delay=600) == ["nacked"]
        pulled = await left.pull()
        rest = [mine[left.name][1], mine[right.name][1], *pulled]
        assert await statuses(client, "ack", *rest) == ["acked"] * 3


async def test_acks_of_one_message_are_each_answered(hosts: Both, name: str) -> None:
    one, _ = hosts
    queue = await made(one, name)
    await one.publish(name, *range(300), key=None)
    async with opened(one.url) as client:
        await consume(client, name, prefetch=300)
        given = await take(client, 300, name)
        ids = range(1000, 1300)
        await client.send(
            *({"id": id_, "ack": {"receipts": [d["receipt"]]}} for id_, d in zip(ids, given, strict=True))
        )
        results = [(await client.reply(id_))["ack"]["results"] for id_ in ids]
        assert [(r["receipt"], r["status"]) for (r,) in results] == [(d["receipt"], "acked") for d in given]
        assert (await queue.stats())["acked"] == 300


async def test_two_connections_share_and_a_lane_passes_between_them(hosts: Both, name: str) -> None:
    one, two = hosts
    await made(one, name)
    seen: list[int] = []

    async def work(host: Host) -> None:
        async with opened(host.url) as client:
            await consume(client, name, prefetch=4)
            while True:
                (delivery,) = await take(client, 1, name)
                seen.append(delivery["message"]["data"])
                await settle(client, "ack", delivery)

    working = [asyncio.create_task(work(host)) for host in (one, two, one)]
    await one.publish(name, *range(40), key="k")
    await eventually(lambda: len(seen) == 40)
    await cancel(*working)
    assert seen == list(range(40))


# --- ends


@pytest.mark.parametrize("how", ["dropped", "closed", "unconsumed"])
async def test_what_a_member_held_comes_again_at_once(hosts: Both, name: str, how: str) -> None:
    one, two = hosts
    queue = await made(one, name)
    await one.publish(name, *range(3), key=None)
    async with opened(one.url) as client, opened(two.url) as other:
        await consume(client, name, prefetch=3)
        given = await take(client, 3, name)
        await settle(client, "ack", given[0])
        if how == "dropped":
            client.drop()
        elif how == "closed":
            await client.close()
        else:
            assert (await client.ask("unconsume", subscription=name))["unconsume"] == {}
        await consume(other, name)
        again: list[Delivery] = []
        for _ in range(2):  # those in doubt come one at a time
            again += await take(other, 1, name)
            await settle(other, "ack", again[-1])
        assert (data(again), attempts(again)) == ([1, 2], [2, 2])
        assert await queue.ack(given[1]) == ["unknown"]
        if how == "unconsumed":
            assert client.pushes == []
            await consume(client, name)


async def test_acks_sent_before_the_end_count(hosts: Both, name: str) -> None:
    """They come in one message with an unconsume, and right before a close."""
    one, _ = hosts
    queue = await made(one, name)
    for end in ("unconsume", "close"):
        await one.publish(name, *range(50), key=None)
        async with opened(one.url) as client:
            await consume(client, name, prefetch=50)
            given = await take(client, 50, name)
            acks = [
                {"id": 100 + number, "ack": {"receipts": [delivery["receipt"]]}}
                for number, delivery in enumerate(given)
            ]
            unconsume = [{"id": 7, "unconsume": {"subscription": name}}] if end == "unconsume" else []
            await client.send(*acks, *unconsume)
            if unconsume:
                assert (await client.reply(7))["unconsume"] == {}
        await eventually(lambda: _gone(queue))
        stats = await queue.stats()
        assert (stats["lag"], stats["redelivered"]) == (0, 0)
    assert stats["acked"] == 100


async def test_a_deleted_subscription_says_goodbye_and_may_be_consumed_again(hosts: Both, name: str) -> None:
    one, two = hosts
    queue = await made(one, name)
    async with opened(two.url) as client:
        await consume(client, name)
        await one.ask("DELETE", queue.path, 204)
        push = await client.push("goodbye")
        assert push == {"subscription": name, "goodbye": {"reason": "subscription_deleted"}}
        assert (await client.ask("consume", subscription=name))["error"]["code"] == 102
        await made(one, name)
        await consume(client, name)
        await one.publish(name, "again")
        assert data(await take(client, 1, name)) == ["again"]


async def test_a_paused_member_waits(hosts: Both, name: str) -> None:
    one, two = hosts
    queue = await made(one, name)
    async with opened(two.url) as client:
        await consume(client, name)
        await queue.pause(True)
        await one.publish(name, 1)
        assert await queue.pull() == []
        await queue.pause(False)
        assert data(await take(client, 1, name)) == [1]


async def test_messages_that_retention_removed_are_told_once(hosts: Both, name: str) -> None:
    one, two = hosts
    await one.ask("PUT", f"/v1/channels/{name}", 201, json={"retention": {"max_messages": 2}})
    queue = await made(one, name)
    await one.publish(name, *range(5), key=None)

    async def removed() -> bool:
        return bool((await one.ask("GET", f"/v1/channels/{name}"))["first_seq"] == 4)

    await eventually(removed)
    async with opened(two.url) as client:
        await consume(client, name)
        push = await client.push("gap")
        assert push == {"subscription": name, "gap": {"channel": name, "first_seq": 4, "missed": 3}}
        given = await take(client, 2, name)
        assert data(given) == [3, 4]
        await settle(client, "ack", *given)
    assert await queue.at(two).pull_gaps() == ([], None)


async def test_a_server_that_stops_closes_and_gives_back(hosts: Both, serve: Serve, name: str) -> None:
    service = serve()
    async with Host(service.url) as host, Host(serve().url) as other:
        queue = await made(host, name, max_deliver=1)
        await host.publish(name, 1)
        client = await Frames.open(service.url)
        await consume(client, name)
        given = await take(client, 1, name)
        service.process.terminate()
        said, code = await client.rest()
        assert (said, code) == ([], 3001)
        again = await queue.at(other).take(1)
        assert (data(again), attempts(again)) == ([1], [2])
        assert await queue.at(other).ack(*given) == ["lease_expired"]
        assert await asyncio.to_thread(service.process.wait, PATIENCE_S) == 0


async def test_what_a_killed_server_pushed_comes_again_before_its_deadline(serve: Serve, name: str) -> None:
    service, other = serve(), serve()
    async with Host(service.url) as host, opened(other.url) as survivor:
        await made(host, name)
        await host.publish(name, 1)
        client = await Frames.open(service.url)
        await consume(client, name)
        (first,) = await take(client, 1, name)
        service.kill()
        await consume(survivor, name)
        (again,) = await take(survivor, 1, name)
        assert (first["attempt"], again["attempt"]) == (1, 2)
        client.drop()


@pytest.mark.drill
async def test_a_member_that_takes_nothing_is_cut_off(serve: Serve, name: str) -> None:
    # The other host is for who reads and may be late.
    service, other = serve(GAPLESS_SLOW_READER_TIMEOUT="1"), serve()
    async with Host(service.url) as host, Host(other.url) as rest:
        queue = await made(rest, name, ordering="none")
        for number in range(16):
            await rest.publish(name, str(number) * 400_000)
        client = await Frames.open(service.url, max_queue=1)
        await consume(client, name, prefetch=1000)
        client.connection.transport.pause_reading()
        cut = 'gapless_streams_cut_total{reason="slow_consumer"}'
        await eventually(lambda: host.metric(cut))
        taken = await queue.take(16)
        assert sorted(d["message"]["seq"] for d in taken) == list(range(1, 17))
        assert {2} <= set(attempts(taken)) <= {1, 2}
        client.drop()


# --- refusals

RECEIPTS: dict[str, Any] = {"receipts": ["x"]}


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"consume": {"subscription": "nobody.has.this"}}, 102),
        ({"consume": {}}, 107),
        ({"consume": None}, 107),
        ({"consume": {"subscription": ""}}, 107),
        ({"consume": {"subscription": "a b"}}, 107),
        ({"consume": {"subscription": "a", "prefetch": 0}}, 107),
        ({"consume": {"subscription": "a", "prefetch": 1001}}, 107),
        ({"consume": {"subscription": "a", "prefetch": "5"}}, 107),
        ({"consume": {"subscription": "a", "heartbeat": 5}}, 107),
        ({"unconsume": {}}, 107),
        ({"unconsume": {"subscription": "a*"}}, 107),
        ({"ack": {}}, 107),
        ({"ack": []}, 107),
        ({"ack": {"receipts": []}}, 107),
        ({"ack": {"receipts": "x"}}, 107),
        ({"ack": {"receipts": [1]}}, 107),
        ({"ack": {"receipts": ["x"] * 1001}}, 107),
        ({"ack": {"receipts": ["x" * 1_048_576]}}, 106),
        ({"ack": {**RECEIPTS, "delay": 1}}, 107),
        ({"nack": {**RECEIPTS, "delay": -1}}, 107),
        ({"nack": {**RECEIPTS, "delay": 1, "dead_letter": True}}, 107),
        ({"nack": {**RECEIPTS, "reason": "x" * 1001}}, 107),
        ({"nack": {**RECEIPTS, "reason": "\u0000"}}, 107),
        ({"release": {**RECEIPTS, "delay": -1}}, 107),
        ({"release": {**RECEIPTS, "reason": "x"}}, 107),
        ({"extend": {**RECEIPTS, "ack_wait": 0}}, 107),
        ({"extend": {**RECEIPTS, "ack_wait": 86_401}}, 107),
    ],
)
async def test_what_cannot_be_done_is_refused_and_the_connection_stays(
    server_url: str, command: dict[str, Any], code: int
) -> None:
    async with opened(server_url) as client:
        for id_ in range(71, 75):  # More often than malformed lines are borne.
            await client.send({"id": id_, **command})
            assert (await client.reply(id_))["error"]["code"] == code
        assert (await client.ask("ping"))["ping"] == {}


@pytest.mark.parametrize(
    "body",
    [
        '{"receipts":["\\ud800"]}',
        '{"receipts":["a"],"receipts":["b"]}',
        '{"receipts":' + "[" * 40 + "]" * 40 + "}",
        '{"receipts":["a"],"delay":1e400}',
        '{"receipts":["a"],"delay":NaN}',
    ],
)
async def test_json_that_http_refuses_is_refused(server_url: str, body: str) -> None:
    async with opened(server_url) as client:
        await client.connection.send('{"id":77,"nack":' + body + "}")
        assert (await client.reply(77))["error"]["code"] == 107
        assert (await client.ask("ping"))["ping"] == {}


async def test_receipts_that_are_none_are_unknown(server_url: str) -> None:
    async with opened(server_url) as client:
        for verb in ("ack", "nack", "release", "extend"):
            results = (await client.ask(verb, receipts=["x", "", "A" * 60, "é" * 60]))[verb]["results"]
            assert [result["status"] for result in results] == ["unknown"] * 4


async def test_a_subscription_is_consumed_once_and_32_at_most(hosts: Both, name: str) -> None:
    one, _ = hosts
    for number in range(33):
        await made(one, f"{name}.{number}")
    async with opened(one.url) as client:
        for number in range(32):
            await consume(client, f"{name}.{number}")
        assert (await client.ask("consume", subscription=f"{name}.0"))["error"]["code"] == 105
        assert (await client.ask("consume", subscription=f"{name}.32"))["error"]["code"] == 106
        assert (await client.ask("unconsume", subscription=f"{name}.32"))["unconsume"] == {}
        assert (await client.ask("unconsume", subscription=f"{name}.0"))["unconsume"] == {}
        await consume(client, f"{name}.32")


async def test_an_unconsume_that_overtakes_a_consume_ends_it(hosts: Both, name: str) -> None:
    one, _ = hosts
    queue = await made(one, name)
    await one.publish(name, 1)
    async with opened(one.url) as client:
        asked = {"subscription": name}
        await client.send({"id": 71, "consume": asked}, {"id": 72, "unconsume": asked})
        assert (await client.reply(72))["unconsume"] == {}
        assert (await client.reply(71))["error"]["code"] == 108
        await consume(client, name)
        (given,) = await take(client, 1, name)
        assert (given["attempt"], await queue.ack(given)) == (1, ["acked"])


async def test_settlements_under_way_are_limited(server_url: str) -> None:
    async with opened(server_url) as client:
        body = {"receipts": ["x" * 200] * 1000}
        ids = range(71, 76)
        await client.send(*({"id": id_, "nack": body} for id_ in ids), {"id": 76, "ack": body})
        for id_ in ids:
            assert len((await client.reply(id_))["nack"]["results"]) == 1000
        assert (await client.reply(76))["error"] == {
            "code": 111, "message": "too many requests", "temporary": True,
        }  # fmt: skip
        assert len((await client.ask("ack", **body))["ack"]["results"]) == 1000


async def test_before_the_service_is_ready_all_is_refused_for_now(serve: Serve, tmp_path: Any) -> None:
    late = tmp_path / "definitions.json"
    async with starting(serve, GAPLESS_DEFINITIONS=str(late)) as (host, _):
        async with opened(host.url) as client:
            for command in ({"consume": {"subscription": "a"}}, {"ack": RECEIPTS}, {"extend": RECEIPTS}):
                await client.send({"id": 9, **command})
                error = (await client.reply(9))["error"]
                assert (error["code"], error["temporary"]) == (100, True)
        late.write_text('{"channels": [], "policies": [], "subscriptions": []}')


async def test_commands_before_the_connect_are_refused(server_url: str) -> None:
    async with opened(server_url, connected=False) as client:
        assert (await client.ask("ack", **RECEIPTS))["error"]["code"] == 101
