"""Durable subscriptions as consumers use them, over two hosts of one installation."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from tests.conftest import Serve
from tests.integration.queueing import WAIT_S, Host, Queue, attempts, data, deliveries
from tests.patience import eventually

Both = tuple[Host, Host]
DAY_S = 86_400
MANY = 10_000


# --- what fails


async def test_who_fails_twice_is_one_dead_letter(hosts: Both) -> None:
    one, _ = hosts
    queue = await one.subscribe("twice", max_deliver=2, backoff=[0])
    await one.publish("twice", {"order": 7})
    seen = []
    for _ in range(2):
        (delivery,) = await queue.take(1)
        seen.append(delivery["attempt"])
        assert await queue.nack(delivery, reason="broken") == ["nacked"]
    assert seen == [1, 2]
    assert await queue.pull() == []
    (letter,) = await one.letters(subscription="twice")
    assert (letter["reason"], letter["attempts"], letter["last_error"]) == ("max_deliver", 2, "broken")
    assert letter["message"]["data"] == {"order": 7}
    stats = await queue.stats()
    assert (stats["dead_letters"], stats["lag"], stats["in_flight"], stats["redelivered"]) == (1, 0, 0, 1)


async def test_a_lease_that_ends_for_the_last_time_is_one_dead_letter(hosts: Both) -> None:
    one, two = hosts
    queue = await one.subscribe("leases", max_deliver=2, ack_wait=0.2)
    await one.publish("leases", 1)
    assert attempts(await queue.take(1) + await queue.at(two).take(1)) == [1, 2]
    (letter,) = await eventually(lambda: two.letters(subscription="leases"))
    assert (letter["reason"], letter["attempts"]) == ("max_deliver", 2)
    assert await queue.pull() == []


async def test_what_is_moved_counts_and_leaves_no_entry(hosts: Both) -> None:
    one, two = hosts
    queue = await one.subscribe("moves", dead_letter={"channel": "moves.dead", "keep": False})
    await one.publish("moves", 1)
    (delivery,) = await queue.take(1)
    body = {"receipts": [delivery["receipt"]], "dead_letter": True}
    (result,) = (await one.ask("POST", "/v1/nack", json=body))["results"]
    assert result == {"receipt": delivery["receipt"], "status": "nacked"}
    stats = await queue.stats()
    assert (stats["dead_lettered"], stats["dead_letters"], stats["removed_by_retention"]) == (1, 0, 0)
    assert await two.letters(subscription="moves") == []
    (copy,) = (await two.ask("GET", "/v1/channels/moves.dead/messages"))["messages"]
    assert "gapless-journey" in copy["headers"]


async def test_a_second_nack_makes_no_second_dead_letter(hosts: Both) -> None:
    one, two = hosts
    queue = await one.subscribe("nacks")
    await one.publish("nacks", 1, 2, 3)
    one_, two_, three = await queue.take(3)
    assert await queue.nack(one_, dead_letter=True) == ["nacked"]
    assert await queue.at(two).nack(one_, dead_letter=True) == ["unknown"]
    twice = await asyncio.gather(*[queue.at(h).nack(two_, dead_letter=True) for h in hosts for _ in range(4)])
    assert sorted(status for (status,) in twice) == ["nacked"] + ["unknown"] * 7
    assert await queue.nack(three, three, dead_letter=True) == ["nacked", "nacked"]
    assert len(await one.letters(subscription="nacks")) == 3


async def test_of_many_acks_of_one_lease_one_settles_it(hosts: Both) -> None:
    one, _ = hosts
    queue = await one.subscribe("acks")
    await one.publish("acks", 1)
    (delivery,) = await queue.take(1)
    results = await asyncio.gather(*[queue.at(host).ack(delivery) for host in hosts for _ in range(10)])
    assert sorted(status for (status,) in results) == ["acked"] + ["unknown"] * 19
    assert (await queue.stats())["acked"] == 1


async def test_what_is_no_receipt_of_this_lease_settles_nothing(hosts: Both) -> None:
    one, _ = hosts
    queue = await one.subscribe("forged", ack_wait=DAY_S)
    other = await one.subscribe("forged.other", "forged", ack_wait=DAY_S)
    await one.publish("forged", 1)
    (delivery,), (foreign,) = await queue.take(1), await other.take(1)
    receipt = delivery["receipt"]
    flipped = receipt[:20] + ("A" if receipt[20] != "A" else "B") + receipt[21:]
    forged = [{"receipt": text} for text in ("", "x", "A" * 60, flipped, receipt + "A", "\u00e9" * 60)]
    for settle in (queue.ack, queue.nack):
        assert await settle(*forged, foreign) == ["unknown"] * 7
    assert await queue.nack(*forged, foreign, dead_letter=True) == ["unknown"] * 7
    assert {result["status"] for result in await queue.extend(*forged, foreign)} == {"unknown"}
    assert await queue.ack(delivery) == ["acked"]
    assert await other.ack(foreign) == ["acked"]


async def settle(host: Host, verb: str, *taken: dict[str, Any], **how: Any) -> list[str]:
    """Without a name."""
    body = {"receipts": [delivery["receipt"] for delivery in taken], **how}
    results = (await host.ask("POST", f"/v1/{verb}", json=body))["results"]
    assert [result["receipt"] for result in results] == body["receipts"]
    return [result["status"] for result in results]


async def test_receipts_alone_race_with_names_over_both_hosts(hosts: Both) -> None:
    """Each lease is settled once, whoever asks by whatever way; an answer never says less than was done."""
    one, _ = hosts
    queues = [await one.subscribe(f"alone.{n}", "alone", ordering="none") for n in range(5)]
    await one.publish("alone", *range(20))
    taken = [await queue.take(20) for queue in queues]
    mixed = [delivery for each in zip(*taken, strict=True) for delivery in each]
    asked = [settle(host, "ack", *way) for host in hosts for way in (mixed, mixed[::-1])]
    named = [queue.at(host).ack(*own) for host in hosts for queue, own in zip(queues, taken, strict=True)]
    statuses = [status for answer in await asyncio.gather(*asked, *named) for status in answer]
    assert (statuses.count("acked"), statuses.count("unknown")) == (100, 500)
    assert [(await queue.stats())["acked"] for queue in queues] == [20] * 5


async def test_receipts_alone_give_back_extend_and_bury(hosts: Both) -> None:
    one, two = hosts
    queues = [await one.subscribe(f"back.{n}", "back", ack_wait=DAY_S) for n in range(2)]
    await one.publish("back", 1)
    both = [delivery for queue in queues for delivery in await queue.take(1)]
    nonsense = {"receipt": "x"}
    assert await settle(two, "extend", *both, nonsense, ack_wait=60) == ["extended", "extended", "unknown"]
    assert await settle(two, "nack", *both, nonsense, delay=0) == ["nacked", "nacked", "unknown"]
    assert await settle(one, "nack", *both, delay=0) == ["lease_expired"] * 2
    again = [delivery for queue in queues for delivery in await queue.take(1)]
    assert attempts(again) == [2, 2]
    await one.ask("DELETE", queues[1].path, 204)
    assert await settle(two, "nack", *again, dead_letter=True) == ["nacked", "unknown"]
    assert len(await one.letters(channel="back")) == 1


async def test_what_was_deleted_at_another_host_is_not_found(hosts: Both) -> None:
    one, two = hosts
    queue = await one.subscribe("vanished", ordering="none", ack_wait=DAY_S)
    await one.publish("vanished", 1, 2)
    taken = await queue.at(two).take(2)
    assert await queue.at(two).ack(taken[0]) == ["acked"]
    await one.ask("DELETE", queue.path, 204)
    for verb in ("ack", "nack", "release", "extend"):
        refused = await two.ask("POST", f"{queue.path}/{verb}", 404, json={"receipts": [taken[1]["receipt"]]})
        assert refused["code"] == "subscription_not_found"


async def test_looking_tells_everything_and_leases_nothing(hosts: Both) -> None:
    one, two = hosts
    queue = await one.subscribe("looked.at", "looked.*", ack_wait=DAY_S)
    first, _, _ = await one.publish("looked.at", 1, 2, 3, key="k")
    await one.publish("looked.too", 4)
    path = f"{queue.path}/messages"
    ready = await two.ask("GET", path, params={"state": "ready"})
    assert [m["message"]["data"] for m in ready.pop("messages")] == [1, 4]
    assert ready == {"has_more": False, "cursor": ready["cursor"], "complete": True}
    async with queue.consume(prefetch=1) as stream:
        (delivery,) = await deliveries(stream, 1)
        (leased,) = (await two.ask("GET", path, params={"state": "leased"}))["messages"]
        assert leased.pop("member") not in ("pull", "0")
        assert leased == {
            "state": "leased",
            "attempt": 1,
            "deadline": delivery["deadline"],
            "message": delivery["message"],
        }
        await queue.nack(delivery, delay=100)
    assert (await two.ask("GET", path, params={"state": "delayed"}))["messages"][0]["due_at"] > first[
        "created_at"
    ]
    page = await two.ask("GET", path, params={"state": "waiting", "limit": 1})
    assert (page["has_more"], page["messages"][0]["waits_for"]) == (True, first["id"])
    rest = await one.ask("GET", path, params={"state": "waiting", "cursor": page["cursor"]})
    assert [m["message"]["data"] for m in rest["messages"]] == [3]
    everything = (await one.ask("GET", path))["messages"]
    assert [m["state"] for m in everything] == ["delayed", "waiting", "waiting", "ready"]
    for wrong in (
        {"state": "lost"},
        {"state": ""},
        {"limit": 0},
        {"limit": 1001},
        {"cursor": "x"},
        {"stat": "ready"},
    ):
        refused = await two.ask("GET", path, 422, params=wrong)
        assert (refused["code"], refused["errors"][0]["field"]) == ("invalid_request", *wrong)
    gone = await two.ask("GET", "/v1/subscriptions/nobody/messages", 404)
    assert gone["code"] == "subscription_not_found"


async def test_a_late_ack_is_refused(hosts: Both) -> None:
    one, two = hosts
    queue = await one.subscribe("late", ack_wait=0.2, max_deliver=0)
    await one.publish("late", 1)
    (first,) = await queue.take(1)
    (second,) = await queue.at(two).take(1)
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert await queue.ack(first) == ["lease_expired"]
    assert await queue.nack(first) == ["lease_expired"]
    assert [result["status"] for result in await queue.extend(first)] == ["lease_expired"]


async def test_extending_moves_the_deadline_of_the_same_receipt(hosts: Both) -> None:
    one, two = hosts
    queue = await one.subscribe("extended", ack_wait=60)
    await one.publish("extended", 1)
    (delivery,) = await queue.take(1)
    (longer,) = await queue.at(two).extend(delivery, ack_wait=DAY_S)
    (own,) = await queue.extend(delivery)
    assert (longer["status"], own["status"]) == ("extended", "extended")
    assert delivery["deadline"] < own["deadline"] < longer["deadline"]
    assert await queue.ack(delivery) == ["acked"]
    assert [result["status"] for result in await queue.extend(delivery)] == ["unknown"]


# --- many


async def test_what_is_not_pulled_stays(hosts: Both) -> None:
    one, _ = hosts
    queue = await one.subscribe("rest")
    await one.publish("rest", *range(500))
    assert await queue.ack(*await queue.take(10)) == ["acked"] * 10
    assert (await queue.stats())["lag"] == 490
    rest = await queue.take(490)
    assert data(rest) == list(range(10, 500))
    await queue.ack(*rest)
    assert await queue.pull() == []


@pytest.mark.drill
async def test_ten_thousand_that_are_put_off_come_again(hosts: Both) -> None:
    one, two = hosts
    queue = await one.subscribe("put.off", max_in_flight=MANY, ack_wait=DAY_S)
    for at in range(0, MANY, 1000):
        await one.publish("put.off", *range(at, at + 1000))
    taken = await queue.take(MANY)
    assert set(await queue.nack(*taken, delay=1)) == {"nacked"}
    again = await queue.at(two).take(MANY)
    assert (sorted(data(again)), set(attempts(again))) == (list(range(MANY)), {2})
    assert set(await queue.ack(*again)) == {"acked"}
    stats = await queue.stats()
    assert (stats["acked"], stats["redelivered"], stats["lag"], stats["in_flight"]) == (MANY, MANY, 0, 0)


@pytest.mark.parametrize("way", ["http", pytest.param("sql", marks=pytest.mark.drill)])
async def test_ten_thousand_of_one_transaction_come_in_order(
    hosts: Both, sql: asyncpg.Connection, way: str
) -> None:
    one, two = hosts
    queue = await one.subscribe(f"whole.{way}", f"whole.{way}", f"else.{way}", max_in_flight=MANY)
    taking = asyncio.create_task(queue.at(two).take(MANY))
    if way == "http":
        body = {"publish": [{"channel": f"whole.{way}", "data": n} for n in range(MANY)]}
        await one.ask("POST", "/v1/transactions", 201, json=body)
    else:
        await sql.execute(
            "select gapless.publish($1, to_jsonb(n)) from generate_series(0, $2 - 1) n", f"whole.{way}", MANY
        )
    taken = await taking
    assert data(taken) == list(range(MANY))
    await queue.ack(*taken)


# --- stopped


async def test_a_stopped_subscription_does_not_hold_retention_up(hosts: Both) -> None:
    one, _ = hosts
    await one.ask("PUT", "/v1/channels/stopped", 201, json={"retention": {"max_messages": 5}})
    queue = await one.subscribe("stopped")
    await one.ask("POST", "/v1/subscriptions/stopped/pause")
    await one.publish("stopped", *range(20))
    assert await queue.pull() == []
    stats = await eventually(lambda: _when(queue, removed_by_retention=15))
    assert (stats["lag"], stats["in_flight"]) == (5, 0)
    await one.ask("POST", "/v1/subscriptions/stopped/resume")
    assert data(await queue.take(5)) == list(range(15, 20))
    assert (await queue.stats())["removed_by_retention"] == 15


async def _when(queue: Queue, **wanted: Any) -> dict[str, Any] | None:
    """The stats, once they say this."""
    stats = await queue.stats()
    return stats if wanted.items() <= stats.items() else None


async def test_a_pull_goes_on_when_its_subscription_is_resumed(hosts: Both) -> None:
    one, two = hosts
    queue = await one.subscribe("resumed")
    await one.ask("POST", "/v1/subscriptions/resumed/pause")
    await one.publish("resumed", 1)
    pulling = asyncio.create_task(queue.at(two).pull(1, WAIT_S))
    assert await queue.pull() == []
    assert not pulling.done()
    await one.ask("POST", "/v1/subscriptions/resumed/resume")
    assert data(await pulling) == [1]


# --- what wakes a pull


async def _published(queue: Queue, _: asyncpg.Connection) -> None:
    await queue.host.publish(queue.name, "news")


async def _published_by_sql(queue: Queue, sql: asyncpg.Connection) -> None:
    await sql.execute("select gapless.publish($1, '\"news\"')", queue.name)


async def _dead_lettered(queue: Queue, _: asyncpg.Connection) -> None:
    dying = await queue.host.subscribe(f"dying.{queue.name}", dead_letter={"channel": queue.name})
    await queue.host.publish(dying.name, "news")
    await dying.nack(*await dying.take(1), dead_letter=True)


async def _scheduled(queue: Queue, _: asyncpg.Connection) -> None:
    body = {"data": "news", "delay": 0.2}
    await queue.host.ask("POST", f"/v1/channels/{queue.name}/messages", 202, json=body)


@pytest.mark.parametrize("news", [_published, _published_by_sql, _dead_lettered, _scheduled])
@pytest.mark.parametrize("kind", ["one", "many"])
async def test_news_wakes_a_pull_at_another_host(
    hosts: Both, sql: asyncpg.Connection, news: Any, kind: str
) -> None:
    one, two = hosts
    name = f"news.{news.__name__}.{kind}"
    queue = await one.subscribe(name, *((name,) if kind == "one" else (name, f"{name}.*")))
    pulling = asyncio.create_task(queue.at(two).pull(5, WAIT_S))
    assert await queue.pull() == []
    await news(queue, sql)
    assert data(await pulling) == ["news"]


@pytest.mark.parametrize("end", ["delay", "ack", "lease", "replay"])
async def test_what_comes_back_wakes_a_pull_at_another_host(hosts: Both, end: str) -> None:
    """A delay or a lease that runs out, a lane that becomes free, a dead letter that is given back."""
    one, two = hosts
    name = f"back.{end}"
    queue = await one.subscribe(name, ack_wait=DAY_S)
    await one.publish(name, 1, 2, key="k")
    held = await queue.take(1)
    if end == "replay":
        await queue.nack(*held, dead_letter=True)
        await queue.ack(*await queue.take(1))
    pulling = asyncio.create_task(queue.at(two).pull(5, WAIT_S))
    assert await queue.pull() == []
    if end == "delay":
        await queue.nack(*held, delay=0.5)
    elif end == "lease":
        await queue.extend(*held, ack_wait=0.5)
    elif end == "ack":
        await queue.ack(*held)
    elif end == "replay":
        await one.ask("POST", "/v1/dead-letters/replay", json={"subscription": name})
    taken = await pulling
    assert (data(taken), attempts(taken)) == {
        "delay": ([1], [2]),
        "ack": ([2], [1]),
        "lease": ([1], [2]),
        "replay": ([1], [1]),
    }[end]


async def test_a_pull_that_does_not_wait_sees_what_was_there(hosts: Both) -> None:
    one, two = hosts
    queues = [await one.subscribe("there.one", "there.a"), await one.subscribe("there.many", "there.*")]
    for number in range(20):
        await hosts[number % 2].publish("there.a", number)
        for queue in queues:
            (delivery,) = await queue.at(two).pull()
            assert delivery["message"]["data"] == number
            await queue.ack(delivery)


# --- what stays


async def test_counts_survive_a_kill(serve: Serve) -> None:
    """kill -9 of the whole service: attempts, delays and dead letters are as they were."""
    first = serve()
    async with Host(first.url) as host:
        queue = await host.subscribe("kills", max_deliver=2, ack_wait=DAY_S)
        await host.publish("kills", 1, 2)
        held, dead = await queue.take(2)
        assert await queue.nack(dead, dead_letter=True) == ["nacked"]
        await queue.extend(held, ack_wait=0.5)
        first.kill()
    async with Host(serve().url) as host:
        queue = Queue(host, "kills")
        (again,) = await queue.take(1)
        assert [(d["attempt"], d["message"]["id"]) for d in (held, again)] == [
            (1, held["message"]["id"]),
            (2, held["message"]["id"]),
        ]
        assert await queue.ack(held) == ["lease_expired"]
        await queue.extend(again, ack_wait=0.2)

        async def buried() -> list[Any]:
            letters = await host.letters(subscription="kills")
            return letters if len(letters) == 2 else []

        letters = await eventually(buried)
        assert [(e["reason"], e["attempts"]) for e in letters] == [("rejected", 1), ("max_deliver", 2)]
        assert await queue.pull() == []


async def test_namespaces_see_nothing_of_one_another(serve: Serve) -> None:
    services = [serve(GAPLESS_NAMESPACE=name) for name in ("red", "blue")]
    async with Host(services[0].url) as red, Host(services[1].url) as blue:
        of_red, of_blue = [await host.subscribe("q", "a", ">") for host in (red, blue)]
        await red.publish("a", "red")
        await red.ask("POST", "/v1/channels/a/messages", 202, json={"data": "later", "delay": 3600})
        (delivery,) = await of_red.take(1)
        assert await of_blue.pull() == []
        await blue.publish("a", "blue")
        assert await of_blue.ack(delivery) == ["unknown"]
        for verb in ("ack", "nack", "release", "extend"):
            assert await settle(blue, verb, delivery) == ["unknown"]
        assert await of_red.nack(delivery, dead_letter=True) == ["nacked"]
        (taken,) = await of_blue.take(1)
        assert (taken["message"]["data"], taken["message"]["seq"]) == ("blue", 1)
        (letter,) = await red.letters()
        assert await blue.letters() == []
        await blue.ask("POST", f"/v1/dead-letters/{letter['id']}/replay", 404)
        assert (await blue.ask("GET", "/v1/scheduled"))["scheduled"] == []
        assert [c["last_seq"] for c in (await red.ask("GET", "/v1/channels"))["channels"]] == [1]
        await blue.ask("DELETE", "/v1/subscriptions/q", 204)
        assert (await of_red.stats())["dead_letters"] == 1
