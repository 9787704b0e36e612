"""Publishing and settling together over HTTP: all of it or nothing."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.integration.queueing import WAIT_S, Delivery, Host, Queue, data

Both = tuple[Host, Host]
PATH = "/v1/transactions"


def acks(queue: Queue, *deliveries: Delivery) -> dict[str, Any]:
    return {"subscription": queue.name, "receipts": [delivery["receipt"] for delivery in deliveries]}


def new(channel: str, *contents: Any, **members: Any) -> list[dict[str, Any]]:
    return [{"channel": channel, "data": content, **members} for content in contents]


async def seqs(host: Host, channel: str) -> list[int]:
    """What the channel holds; nothing where there is none."""
    answer = await host.http.get(f"/v1/channels/{channel}/messages")
    return [message["seq"] for message in answer.json().get("messages", [])]


async def test_consume_transform_produce(hosts: Both) -> None:
    one, two = hosts
    left, right = await one.subscribe("tx.left", "tx.in"), await one.subscribe("tx.right", "tx.in")
    out = await one.subscribe("tx.out")
    await one.publish("tx.in", 1, 2, 3)
    of_left, of_right = await left.take(3), await right.take(2)
    body = {
        "publish": new("tx.out", "a", "b") + new("tx.more", "c", key="k", type="t"),
        "ack": [acks(left, *of_left), acks(right, of_right[1])],
    }
    answer = await two.ask("POST", PATH, 201, json=body)
    assert answer["acked"] == 4
    assert [(m["channel"], m["seq"]) for m in answer["messages"]] == [
        ("tx.out", 1),
        ("tx.out", 2),
        ("tx.more", 1),
    ]
    ids = [m["id"] for m in answer["messages"]]
    assert ids == sorted(ids)
    assert all(m["created_at"] for m in answer["messages"])
    assert data(await out.take(2)) == ["a", "b"]
    assert await left.ack(*of_left) == ["unknown"] * 3
    assert await right.ack(*of_right) == ["acked", "unknown"]
    assert (await left.stats())["acked"] == 3


async def test_one_receipt_that_is_not_live_undoes_all(hosts: Both) -> None:
    one, _ = hosts
    queue, other = await one.subscribe("txn.q"), await one.subscribe("txn.other", "txn.q")
    await one.publish("txn.q", *range(5))
    taken, (foreign,) = await queue.take(5), await other.take(1)
    await queue.ack(taken[1])
    await queue.nack(taken[3], delay=60)
    body = {"publish": new("txn.out", 1), "ack": [acks(other, foreign), acks(queue, *taken)]}
    refused = await one.ask("POST", PATH, 409, json=body)
    assert refused["code"] == "transaction_conflict"
    assert [error["field"] for error in refused["errors"]] == ["ack[1].receipts[1]", "ack[1].receipts[3]"]
    assert await seqs(one, "txn.out") == []
    assert await queue.ack(taken[0], taken[2], taken[4]) == ["acked"] * 3
    assert await other.ack(foreign) == ["acked"]


async def test_a_forged_receipt_and_one_of_elsewhere_are_named(hosts: Both) -> None:
    one, _ = hosts
    queue, other = await one.subscribe("txf.q"), await one.subscribe("txf.other", "txf.q")
    await one.publish("txf.q", 1)
    (mine,), (foreign,) = await queue.take(1), await other.take(1)
    await one.publish("txf.q", 2)
    (stale,) = await queue.take(1)
    await queue.ack(stale)
    body = {
        "publish": new("txf.out", 1),
        "ack": [acks(queue, mine, {"receipt": "forged"}, foreign, stale)],
    }
    refused = await one.ask("POST", PATH, 409, json=body)
    assert [error["field"] for error in refused["errors"]] == [f"ack[0].receipts[{n}]" for n in (1, 2, 3)]
    assert await seqs(one, "txf.out") == []
    assert await queue.ack(mine) == ["acked"]
    missing = {"ack": [{"subscription": "txf.none", "receipts": [mine["receipt"]]}]}
    assert (await one.ask("POST", PATH, 404, json=missing))["code"] == "subscription_not_found"


async def test_a_repetition_is_answered_as_the_first_was(hosts: Both) -> None:
    """Its receipts are settled by then, and that is no conflict: this very transaction settled them."""
    one, two = hosts
    queue = await one.subscribe("txk.q")
    await one.publish("txk.q", 1)
    (delivery,) = await queue.take(1)
    body = {"publish": new("txk.out", 1), "ack": [acks(queue, delivery)]}
    keyed = {"Idempotency-Key": "txk"}
    first = await one.ask("POST", PATH, 201, json=body, headers=keyed)
    again = await two.http.post(PATH, json=body, headers=keyed)
    assert (again.status_code, again.json()) == (201, first)
    assert again.headers["idempotent-replayed"] == "true"
    other = {**body, "publish": new("txk.out", 2)}
    assert (await one.ask("POST", PATH, 422, json=other, headers=keyed))["code"] == "idempotency_mismatch"
    assert await seqs(one, "txk.out") == [1]
    assert (await queue.stats())["acked"] == 1
    await one.ask("DELETE", f"/v1/subscriptions/{queue.name}", 204)
    assert await two.ask("POST", PATH, 201, json=body, headers=keyed) == first
    unknown = await one.ask("POST", PATH, 404, json=body, headers={"Idempotency-Key": "txk-new"})
    assert unknown["code"] == "subscription_not_found"
    assert await seqs(one, "txk.out") == [1]


async def test_of_many_with_one_receipt_one_goes_through(hosts: Both) -> None:
    one, _ = hosts
    queue = await one.subscribe("txr.q")
    await one.publish("txr.q", *range(3))
    taken = await queue.take(3)
    bodies = [
        {"publish": new("txr.out", n), "ack": [acks(queue, taken[n % 3], taken[(n + 1) % 3])]}
        for n in range(12)
    ]
    answers = await asyncio.gather(
        *[hosts[n % 2].http.post(PATH, json=body) for n, body in enumerate(bodies)]
    )
    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 11
    assert await seqs(one, "txr.out") == [1]
    assert (await queue.stats())["acked"] == 2


async def test_either_half_may_be_missing(hosts: Both) -> None:
    one, _ = hosts
    queue = await one.subscribe("txh.q")
    await one.publish("txh.q", 1)
    taken = await queue.take(1)
    assert await one.ask("POST", PATH, 201, json={"ack": [acks(queue, *taken)]}) == {
        "messages": [],
        "acked": 1,
    }
    published = await one.ask("POST", PATH, 201, json={"publish": new("txh.out", 1)})
    assert (len(published["messages"]), published["acked"]) == (1, 0)
    bad: list[dict[str, Any]] = [{}, {"publish": [], "ack": []}, {"publish": new("txh.out", 1), "other": 1}]
    for body in bad:
        assert (await one.ask("POST", PATH, 422, json=body))["code"] == "invalid_request"
    late = {"publish": new("txh.out", 1, delay=5)}
    await one.ask("POST", PATH, 422, json=late)
    assert await seqs(one, "txh.out") == [1]


async def test_a_lane_goes_on_when_a_transaction_settles_its_first(hosts: Both) -> None:
    one, two = hosts
    queue = await one.subscribe("txl.q")
    await one.publish("txl.q", 1, 2, key="k")
    (first,) = await queue.take(1)
    pulling = asyncio.create_task(queue.at(two).pull(1, WAIT_S))
    assert await queue.pull() == []
    await one.ask("POST", PATH, 201, json={"publish": new("txl.out", 1), "ack": [acks(queue, first)]})
    assert data(await pulling) == [2]


async def test_those_that_committed_are_counted_with_those_that_were_refused(hosts: Both) -> None:
    one, _ = hosts
    name = 'gapless_http_requests_total{face="transaction",status="%d"}'
    before = [await one.metric(name % status) for status in (201, 422)]
    await one.ask("POST", PATH, 201, json={"publish": new("tx.counted", 1)})
    await one.ask("POST", PATH, 422, json={})
    after = [await one.metric(name % status) for status in (201, 422)]
    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 1]
