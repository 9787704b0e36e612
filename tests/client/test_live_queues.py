"""Durable subscriptions against the real service: what either promises, seen from outside."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from gapless import (
    AsyncClient,
    AsyncDelivery,
    Client,
    Conflict,
    DeadLetterRoute,
    Delivery,
    Filter,
    InvalidRequest,
    LeaseLost,
    NewMessage,
    NotFound,
    RetryPolicy,
    Scheduled,
    TransactionConflict,
)
from gapless._effects import AsyncEffects, Effects

from load.children import free_port
from tests.client.cutting_proxy import CuttingProxy
from tests.client.over_websocket import OVER, MakeClient, Over
from tests.patience import PATIENCE_S, wait_until
from tests.support import RunningService

PATIENT = RetryPolicy(attempts=10_000, total_seconds=5 * PATIENCE_S, base_seconds=0.01, cap_seconds=0.1)


@pytest.fixture
def name() -> str:
    """A name no other test uses, for the subscription and the first token of its channels."""
    return f"q{uuid4().hex[:12]}"


@pytest.fixture
def channel(name: str) -> str:
    return f"{name}.one"


def subscribed(client: Client, name: str, **options: Any) -> str:
    """A subscription to everything under its name."""
    return client.subscriptions.create(name, [f"{name}.>"], start="earliest", **options).name


def pulled(client: Client, name: str, count: int = 1) -> list[Any]:
    """What a pull gives, once there is something to pull."""
    deliveries: list[Any] = wait_until(lambda: client.pull(name, count, wait=10))
    return deliveries


def datas(deliveries: list[Any]) -> list[Any]:
    return [one.message.data for one in deliveries]


def test_a_subscription_is_made_found_changed_listed_and_removed(client: Client, name: str) -> None:
    made = client.subscriptions.create(name, [f"{name}.*"], start=0, ack_wait=7.5, filter=Filter(keys=["k"]))
    assert (made.name, made.channels, made.ack_wait, made.start) == (name, (f"{name}.*",), 7.5, 0)
    assert (made.max_deliver, made.backoff, made.ordering) == (5, (1, 5, 30), "key")
    assert (made.origins["ack_wait"], made.origins["max_deliver"]) == ("own", "default")
    again = client.subscriptions.create(name, [f"{name}.*"], start=0, ack_wait=7.5, filter=Filter(keys=["k"]))
    assert again.created_at == made.created_at
    with pytest.raises(Conflict) as caught:
        client.subscriptions.create(name, [f"{name}.*"], start=0, ack_wait=8)
    assert "ack_wait" in caught.value.detail
    changed = client.subscriptions.update(
        name, ack_wait=None, filter=None, dead_letter=DeadLetterRoute("dead.{subscription}"), max_backlog=9
    )
    assert (changed.ack_wait, changed.filter, changed.max_backlog) == (30, None, 9)
    assert changed.dead_letter == DeadLetterRoute("dead.{subscription}")
    client.subscriptions.create(f"{name}.b", ["x"])
    assert [one.name for one in client.subscriptions.list(f"{name}.>", page_size=1)] == [f"{name}.b"]
    read = client.subscriptions.get(name)
    assert read.stats is not None
    assert (read.stats.lag, read.stats.in_flight, read.stats.oldest_unacked_seconds) == (0, 0, None)
    client.subscriptions.delete(name)
    with pytest.raises(NotFound) as missing:
        client.subscriptions.get(name)
    assert missing.value.code == "subscription_not_found"


def test_what_is_consumed_and_acked_is_settled(client: Client, name: str, channel: str) -> None:
    subscribed(client, name)
    client.publish_many(channel, [NewMessage(n, key=f"k{n}") for n in range(20)])
    seen = []
    with client.consume(name, prefetch=4) as consumer:
        for delivery in consumer:
            with delivery:
                seen.append(delivery.message.data)
            if len(seen) == 20:
                break
    assert sorted(seen) == list(range(20))
    stats = client.subscriptions.get(name).stats
    assert stats is not None
    assert (stats.acked, stats.lag, stats.in_flight, stats.redelivered) == (20, 0, 0, 0)


def test_what_fails_comes_again_and_is_a_dead_letter_at_last(client: Client, name: str, channel: str) -> None:
    subscribed(client, name, max_deliver=3, backoff=[0])
    client.publish(channel, "poison")
    attempts = []
    with client.consume(name) as consumer:

        def handle(delivery: Delivery) -> None:
            attempts.append(delivery.attempt)
            if len(attempts) == 3:
                consumer.stop()
            raise KeyError(f"attempt {delivery.attempt}")

        consumer.work(handle)
    assert attempts == [1, 2, 3]
    (dead,) = client.dead_letters.list(subscription=name)
    assert (dead.reason, dead.attempts, dead.last_error) == ("max_deliver", 3, "KeyError: 'attempt 3'")
    assert (dead.message.data, dead.channel, dead.journey[0].count) == ("poison", channel, 1)
    assert client.dead_letters.get(dead.id) == dead
    replayed = client.dead_letters.replay(dead.id)
    assert (replayed.subscription, replayed.message_id) == (name, dead.message.id)
    with pytest.raises(NotFound) as caught:
        client.dead_letters.replay(dead.id)
    assert caught.value.detail == f"dead letter entry not found: {dead.id}"
    (again,) = pulled(client, name)
    assert (again.attempt, again.message.data) == (1, "poison")
    assert client.ack(name, [again])[0].status == "acked"


def test_rejected_messages_are_replayed_and_purged_together(client: Client, name: str, channel: str) -> None:
    subscribed(client, name, ordering="none")
    client.publish_many(channel, [1, 2, 3])
    taken = pulled(client, name, 10)
    rejected = client.nack(name, taken, dead_letter=True, reason="no")
    assert [one.status for one in rejected] == ["nacked"] * 3
    listed = list(client.dead_letters.list(subscription=name, reason="rejected", page_size=1))
    assert [one.id for one in listed] == sorted(one.dead_letter for one in rejected if one.dead_letter)
    assert {one.last_error for one in listed} == {"no"}
    assert client.dead_letters.replay_all(subscription=name, count=1, dry_run=True).replayed == 1
    assert client.dead_letters.replay_all(ids=[listed[0].id], subscription=name, rate=100).replayed == 1
    client.dead_letters.delete(listed[1].id)
    assert client.dead_letters.purge(3600, subscription=name) == 0
    assert client.dead_letters.purge(0, subscription=name) == 1
    assert list(client.dead_letters.list(subscription=name)) == []


@pytest.mark.realtime("the service ends a lease of two seconds by the clock, unless it is extended")
@pytest.mark.parametrize("over", OVER)
async def test_a_block_longer_than_the_lease_keeps_it(server_url: str, name: str, over: Over) -> None:
    async with AsyncClient(server_url) as client, over(client) as connection:
        await client.subscriptions.create(name, [f"{name}.>"], start="earliest", ack_wait=2)
        await client.publish_many(f"{name}.one", [1, 2, 3])
        attempts = []
        async for delivery in connection.consume(name, prefetch=3, raise_lost=True):
            async with delivery:
                attempts.append(delivery.attempt)
                await asyncio.sleep(4.2 if len(attempts) == 1 else 0)
            if len(attempts) == 3:
                break
        assert attempts == [1, 1, 1]
        stats = (await client.subscriptions.get(name)).stats
        assert stats is not None
        assert (stats.acked, stats.redelivered) == (3, 0)


def test_a_late_ack_is_refused(client: Client, name: str, channel: str) -> None:
    subscribed(client, name, ack_wait=0.2)
    client.publish(channel, 1)
    (first,) = pulled(client, name)
    client.subscriptions.update(name, ack_wait=60)
    (second,) = pulled(client, name)
    assert (second.attempt, second.message.id) == (2, first.message.id)
    assert client.ack(name, [first, "nonsense"])[0].status == "lease_expired"
    assert client.extend(name, [second], ack_wait=60)[0].status == "extended"
    results = client.ack(name, [second, "nonsense"])
    assert [one.status for one in results] == ["acked", "unknown"]
    assert client.ack(name, [second])[0].status == "unknown"


def test_deliveries_of_several_subscriptions_are_settled_without_their_names(
    client: Client, name: str, channel: str
) -> None:
    other = f"{name}.other"
    for each in (name, other):
        client.subscriptions.create(each, [channel], start="earliest")
    client.publish(channel, 1)
    both = [*pulled(client, name), *pulled(client, other)]
    assert [one.status for one in client.extend(None, both, ack_wait=60)] == ["extended"] * 2
    assert [one.status for one in client.nack(None, both, delay=0)] == ["nacked"] * 2
    again = [*pulled(client, name), *pulled(client, other)]
    assert [one.status for one in client.ack(None, [*again, "nonsense"])] == ["acked"] * 2 + ["unknown"]


def test_what_a_member_leaves_behind_comes_again_at_once(client: Client, name: str, channel: str) -> None:
    subscribed(client, name, ack_wait=600)
    client.publish_many(channel, [1, 2, 3])
    with client.consume(name) as consumer:
        held = next(consumer)
    assert held.lost
    with client.consume(name) as consumer:
        attempts = {}
        # What was read ahead may come before it, because that was released before the stream ended.
        for again in (next(consumer) for _ in range(3)):
            attempts[again.message.data] = again.attempt
            if again.message.data == 1:
                assert held.ack().status == "lease_expired"
                assert held.lost
            assert again.ack().status == "acked"
    assert attempts == {1: 2, 2: 1, 3: 1}


def test_a_lost_lease_is_raised_where_asked(client: Client, name: str, channel: str) -> None:
    subscribed(client, name)
    client.publish(channel, 1)
    with client.consume(name, raise_lost=True) as consumer:
        delivery = next(consumer)
        client.nack(name, [delivery], delay=0)
        with pytest.raises(LeaseLost), delivery:
            pass


def test_looking_shows_every_state_and_leases_nothing(client: Client, name: str, channel: str) -> None:
    subscribed(client, name, backoff=[50])
    stored = client.publish_many(channel, [NewMessage(n, key="k") for n in range(2)])
    client.publish_many(channel, [2, 3])
    leased, delayed = [pulled(client, name)[0] for _ in range(2)]
    client.nack(name, [delayed], reason="later")
    seen = list(client.subscriptions.look(name, page_size=1))
    assert [(each.state, each.attempt, each.message.data) for each in seen] == [
        ("leased", 1, 0),
        ("waiting", 0, 1),
        ("delayed", 1, 2),
        ("ready", 0, 3),
    ]
    assert [each.waits_for for each in seen] == [None, stored[0].id, None, None]
    assert (seen[0].deadline, seen[0].member) == (leased.deadline, "pull")
    assert seen[2].due_at is not None
    assert seen[2].last_error == "later"
    assert [each.message for each in client.subscriptions.look(name, "ready")] == [seen[3].message]
    with pytest.raises(NotFound):
        list(client.subscriptions.look("nobody.at.all"))


def test_seek_pause_and_resume(client: Client, name: str, channel: str) -> None:
    subscribed(client, name)
    published = client.publish_many(channel, [1, 2, 3])
    (first,) = pulled(client, name)
    tried = client.subscriptions.seek(name, published[1].id, dry_run=True)
    assert tried.before is not None
    assert tried.stats is not None
    assert (tried.before.in_flight, tried.stats.in_flight, tried.stats.lag) == (1, 0, 1)
    client.subscriptions.seek(name, published[1].id)
    assert client.ack(name, [first])[0].status == "unknown"
    assert datas(pulled(client, name, 10)) == [3]
    client.subscriptions.seek(name, datetime.now(UTC) + timedelta(hours=1))
    assert client.pull(name, 10) == []
    assert client.subscriptions.pause(name).paused
    client.subscriptions.seek(name, "earliest")
    assert client.pull(name, 10) == []
    assert not client.subscriptions.resume(name).paused
    assert datas(pulled(client, name, 10)) == [1, 2, 3]


def test_messages_are_transformed_exactly_once(client: Client, name: str, channel: str) -> None:
    subscribed(client, name)
    client.publish_many(channel, [1, 2, 3])
    results = f"out{name}"
    with client.consume(name) as consumer:
        for delivery in consumer:
            with delivery:
                doubled = (results, delivery.message.data * 2)
                committed = client.transaction(publish=[doubled], ack=[delivery])
                assert (committed.acked, committed.messages[0].channel) == (1, results)
            if delivery.message.data == 3:
                break
    assert [one.data for one in client.iter_history(results)] == [2, 4, 6]
    with pytest.raises(TransactionConflict) as caught:
        client.transaction(publish=[(results, "never")], ack=[delivery])
    assert caught.value.errors[0]["field"] == "ack[0].receipts[0]"
    assert client.channels.get(results).last_seq == 3
    first = client.transaction(publish=[(results, 8)], idempotency_key=f"{name}-t")
    again = client.transaction(publish=[(results, 8)], idempotency_key=f"{name}-t")
    assert again.messages[0].id == first.messages[0].id
    assert again.messages[0].replayed


def test_a_transaction_of_acks_alone(client: Client, name: str, channel: str) -> None:
    subscribed(client, name)
    client.publish_many(channel, [1, 2])
    deliveries = pulled(client, name, 2)
    committed = client.transaction(ack=deliveries)
    assert (committed.acked, committed.messages) == (2, ())
    with pytest.raises(TransactionConflict):
        client.transaction(ack=deliveries)


def test_messages_for_later(client: Client, channel: str) -> None:
    scheduled = client.publish(channel, {"n": 1}, key="k", delay=3600, idempotency_key=f"{channel}-k")
    again = client.publish(channel, {"n": 1}, key="k", delay=3600, idempotency_key=f"{channel}-k")
    assert isinstance(scheduled, Scheduled)
    assert isinstance(again, Scheduled)
    assert (again.scheduled_id, again.replayed) == (scheduled.scheduled_id, True)
    hour = datetime.now(UTC) + timedelta(hours=1)
    assert abs(scheduled.deliver_at - hour) < timedelta(minutes=5)
    other = client.publish(channel, b"\0", deliver_at=hour, sender="ann")
    assert isinstance(other, Scheduled)
    assert [one.scheduled_id for one in client.scheduled.list(channel, page_size=1)] == [
        scheduled.scheduled_id,
        other.scheduled_id,
    ]
    read = client.scheduled.get(scheduled.scheduled_id)
    assert (read.data, read.key, read.deliver_at) == ({"n": 1}, "k", scheduled.deliver_at)
    read = client.scheduled.get(int(other.scheduled_id))
    assert (read.data, read.sender) == (b"\0", "ann")
    client.scheduled.cancel(other.scheduled_id)
    with pytest.raises(NotFound) as caught:
        client.scheduled.cancel(other.scheduled_id)
    assert caught.value.detail == f"scheduled message not found: {other.scheduled_id}"
    promoted = client.scheduled.promote(scheduled.scheduled_id)
    assert client.get_message(channel, promoted.id).data == {"n": 1}
    with client.subscribe(channel) as messages:
        assert isinstance(client.publish(channel, "now", delay=0), Scheduled)
        assert next(messages).data == "now"
        client.publish(channel, "soon", delay=0.1)
        assert next(messages).data == "soon"
    both = client.schedule_many(channel, [(0, "a"), (3600, NewMessage("b"))], idempotency_key=f"{channel}-m")
    again_both = client.schedule_many(
        channel, [(0, "a"), (3600, NewMessage("b"))], idempotency_key=f"{channel}-m"
    )
    assert [(one.scheduled_id, one.replayed) for one in again_both] == [(o.scheduled_id, True) for o in both]
    assert client.scheduled.get(both[1].scheduled_id).data == "b"
    with pytest.raises(InvalidRequest):
        client.schedule_many(channel, [(1, 1), (-1, 2)])
    with pytest.raises(InvalidRequest):
        client.publish(channel, 1, delay=-1)


def test_policies_apply_at_once(client: Client, name: str) -> None:
    subscribed(client, name, max_deliver=7)
    policy = client.policies.put(name, name, "subscriptions", {"ack_wait": 3, "max_deliver": 9}, priority=5)
    assert client.policies.get(name) == policy
    assert policy in list(client.policies.list())
    read = client.subscriptions.get(name)
    assert (read.ack_wait, read.max_deliver, read.origins["ack_wait"]) == (3, 7, f"policy:{name}")
    client.policies.delete(name)
    assert client.subscriptions.get(name).ack_wait == 30
    with pytest.raises(NotFound):
        client.policies.get(name)


def test_definitions_go_out_and_come_back(client: Client, name: str) -> None:
    subscribed(client, name, ack_wait=3)
    exported = client.definitions.export()
    (mine,) = [one for one in exported["subscriptions"] if one["name"] == name]
    document = {
        "version": 1,
        "subscriptions": [{**mine, "ack_wait": 4}, {"name": f"{name}b", "channels": ["x"]}],
    }
    tried = client.definitions.import_(document, dry_run=True)
    assert tried.dry_run
    assert client.subscriptions.get(name).ack_wait == 3
    done = client.definitions.import_(document)
    assert done.created == (f"subscription:{name}b",)
    assert done.updated == (f"subscription:{name}",)
    (change,) = [one for one in done.diff if one.name == name]
    assert (change.kind, (change.before or {})["ack_wait"], change.after["ack_wait"]) == (
        "subscription",
        3,
        4,
    )
    repeated = client.definitions.import_(document)
    assert (repeated.created, repeated.updated, repeated.unchanged, repeated.diff) == ((), (), 2, ())


def test_a_deleted_subscription_ends_its_consumers(client: Client, name: str) -> None:
    subscribed(client, name)
    with client.consume(name) as consumer:
        client.subscriptions.delete(name)
        with pytest.raises(NotFound):
            next(consumer)
    with pytest.raises(NotFound):
        client.pull(name)


@pytest.mark.parametrize("over", OVER)
async def test_keys_stay_in_order_however_many_work(server_url: str, name: str, over: Over) -> None:
    """Eight hands on two members; some turns fail, some are slow; each key's messages are done in order."""
    chance = random.Random(7)
    total, keys = 240, 12
    done: defaultdict[str | None, list[int]] = defaultdict(list)
    async with AsyncClient(server_url) as client, over(client) as one, over(client) as other:
        await client.subscriptions.create(name, [f"{name}.>"], start="earliest", backoff=[0], max_deliver=0)
        numbered = [NewMessage(n, key=f"k{n % keys}") for n in range(total)]
        await client.publish_many(f"{name}.one", numbered)
        consumers = [each.consume(name, prefetch=8) for each in (one, other)]

        async def handle(delivery: AsyncDelivery) -> None:
            if chance.random() < 0.2:
                await asyncio.sleep(0.005)
            if chance.random() < 0.2:
                raise KeyError("again")
            done[delivery.message.key].append(delivery.message.data)
            if sum(map(len, done.values())) == total:
                for consumer in consumers:
                    consumer.stop()

        async with consumers[0], consumers[1]:
            async with asyncio.timeout(2 * PATIENCE_S):
                await asyncio.gather(*(consumer.work(handle, concurrency=4) for consumer in consumers))
    for number in range(keys):
        assert done[f"k{number}"] == list(range(number, total, keys))


@pytest.mark.parametrize("over", OVER)
async def test_over_a_bad_network_nothing_is_lost(server_url: str, name: str, over: Over) -> None:
    """Every connection is cut after some bytes; each message is done at least once and settled."""
    chance = random.Random(11)
    total = 60
    brisk = AsyncEffects(chance=lambda: chance.random() / 50)
    seen: set[int] = set()
    with Client(server_url) as steady:
        subscribed(steady, name, ordering="none", max_deliver=0, ack_wait=600)
        steady.publish_many(f"{name}.one", list(range(total)))
        budgets = iter([chance.randrange(200, 4000) for _ in range(60)])
        with CuttingProxy(server_url, budgets) as proxy:
            async with AsyncClient(proxy.url, retry=PATIENT, effects=brisk) as client, over(client) as way:
                consumer = way.consume(name, prefetch=20)

                async def handle(delivery: AsyncDelivery) -> None:
                    seen.add(delivery.message.data)

                async def stop_when_all_is_settled() -> None:
                    while True:
                        stats = await asyncio.to_thread(lambda: steady.subscriptions.get(name).stats)
                        if stats is not None and stats.acked == total:
                            return consumer.stop()

                async with consumer:
                    async with asyncio.timeout(2 * PATIENCE_S):
                        work = consumer.work(handle, concurrency=5)
                        await asyncio.gather(work, stop_when_all_is_settled())
            assert proxy.cuts > 5
    assert seen == set(range(total))


@pytest.mark.drill
@pytest.mark.parametrize("end", [RunningService.kill, RunningService.stop], ids=["kill", "stop"])
def test_a_restart_loses_nothing(
    serve: Callable[..., RunningService],
    name: str,
    end: Callable[[RunningService], object],
    make_client: MakeClient,
) -> None:
    """The service is ended twice, gently or not, while one thread publishes and four work."""
    port = str(free_port())
    service = serve("--port", port)
    quick = Effects(chance=lambda: 0.02)
    total, seen = 300, set[int]()
    milestones = {total // 3: threading.Event(), total * 2 // 3: threading.Event()}
    with (
        Client(service.url, retry=PATIENT) as publisher,
        make_client(service.url, retry=PATIENT, effects=quick) as worker,
    ):
        subscribed(publisher, name, max_deliver=0, ack_wait=5, ordering="none")
        consumer = worker.consume(name, prefetch=10)

        def write() -> None:
            for n in range(total):
                publisher.publish(f"{name}.one", n)
                if n in milestones:
                    milestones[n].set()

        def handle(delivery: Delivery) -> None:
            seen.add(delivery.message.data)
            if len(seen) == total:
                consumer.stop()

        working = threading.Thread(target=lambda: consumer.work(handle, concurrency=4))
        threads = [threading.Thread(target=write), working]
        for thread in threads:
            thread.start()
        for reached in milestones.values():
            assert reached.wait(PATIENCE_S)
            end(service)
            service = serve("--port", port)
        for thread in threads:
            thread.join(2 * PATIENCE_S)
        consumer.close()
        stats = publisher.subscriptions.get(name).stats
    assert seen == set(range(total))
    assert stats is not None
    assert stats.dead_lettered == 0
