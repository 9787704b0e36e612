"""Which processes have members of a subscription, and what those leave that are gone, over every adapter."""

from __future__ import annotations

from subscriptions.domain.delivery import Delivery, Hand, Subscription
from tests.contract.bench import Bench, attempts, data
from tests.contract.test_deliveries import bench, queue

__all__ = ["bench"]

HERE = ["default"]
ONE, OTHER = 101, 102
"""Processes."""


async def hold(bench: Bench, q: Subscription, holder: int, *members: int) -> list[Delivery]:
    """A message for each of these streams of a process."""
    hands = [Hand(member, members[: n + 1].count(member)) for n, member in enumerate(members)]
    claimed = await bench.port.claim(q.id, await bench.store.settled(), len(hands), holder, hands)
    assert len(claimed.deliveries) == len(members)
    return list(claimed.deliveries)


async def there(bench: Bench, *holders: int) -> None:
    for holder in holders:
        await bench.store.arrive(holder)


async def given_back(bench: Bench, q: Subscription, holder: int, limit: int = 100) -> int:
    done, _ = await bench.port.release_departed(holder, q.id, limit)
    return done


# --- who is gone


async def test_a_process_that_is_there_keeps_what_it_holds(bench: Bench) -> None:
    q = await queue(bench, 1, 2)
    await there(bench, ONE)
    await hold(bench, q, ONE, 1, 1)
    assert await bench.port.departed(HERE) == []
    assert await given_back(bench, q, ONE) == 0
    assert await bench.take(q) == []


async def test_what_a_process_that_is_gone_held_is_due_again_at_once(bench: Bench) -> None:
    q = await queue(bench, 1, 2, 3, 4)
    await there(bench, ONE, OTHER)
    await hold(bench, q, ONE, 1, 1)
    await hold(bench, q, OTHER, 2)
    await bench.store.depart(ONE)
    assert await bench.port.departed(HERE) == [(ONE, q.id)]
    assert await given_back(bench, q, ONE) == 2
    assert await bench.port.departed(HERE) == []
    again = await bench.take(q)
    assert sorted(zip(data(again), attempts(again), strict=True)) == [("1", 2), ("2", 2), ("4", 1)]


async def test_only_what_is_in_these_namespaces_is_told(bench: Bench) -> None:
    q = await queue(bench, 1)
    await there(bench, ONE)
    await hold(bench, q, ONE, 1)
    await bench.store.depart(ONE)
    assert await bench.port.departed([]) == []
    assert await bench.port.departed(HERE) == [(ONE, q.id)]


async def test_of_each_stream_all_comes_back_at_once(bench: Bench) -> None:
    q = await queue(bench, *range(6))
    await there(bench, ONE)
    await hold(bench, q, ONE, 1, 1, 2, 2, 3, 3)
    await bench.store.depart(ONE)
    await bench.port.departed(HERE)
    assert [await given_back(bench, q, ONE, limit) for limit in (1, 3, 100, 100)] == [2, 2, 2, 0]


async def test_what_was_pulled_lasts_until_its_deadline(bench: Bench) -> None:
    q = await queue(bench, 1)
    await there(bench, ONE)
    await bench.take(q)
    await bench.store.depart(ONE)
    assert await bench.port.departed(HERE) == []
    assert await bench.take(q) == []


async def test_what_was_settled_does_not_come_back(bench: Bench) -> None:
    q = await queue(bench, 1, 2)
    await there(bench, ONE)
    first, _ = await hold(bench, q, ONE, 1, 1)
    await bench.ack(q, first)
    await bench.store.depart(ONE)
    await bench.port.departed(HERE)
    assert await given_back(bench, q, ONE) == 1
    assert data(await bench.take(q)) == ["2"]


async def test_a_subscription_that_was_deleted_has_nothing_left(bench: Bench) -> None:
    q = await queue(bench, 1)
    await there(bench, ONE)
    await hold(bench, q, ONE, 1)
    await bench.store.depart(ONE)
    await bench.store.delete("q")
    assert await bench.port.departed(HERE) == []
    assert await given_back(bench, q, ONE) == 0


# --- who is there


async def test_a_process_is_there_from_its_word_on_until_it_leaves(bench: Bench) -> None:
    q = await bench.store.subscribe("q")
    await there(bench, ONE, OTHER)
    assert await bench.port.attend(q.id, ONE)
    assert await bench.port.attend(q.id, ONE), "said twice it is said"
    assert await bench.port.attend(q.id, OTHER)
    assert await bench.store.members(q) == {ONE, OTHER}
    await bench.port.leave(q.id, ONE)
    assert await bench.store.members(q) == {OTHER}


async def test_who_was_not_there_can_leave(bench: Bench) -> None:
    q = await bench.store.subscribe("q")
    await bench.port.leave(q.id, ONE)
    assert await bench.store.members(q) == set()


async def test_nobody_attends_what_is_not_there(bench: Bench) -> None:
    q = await bench.store.subscribe("q")
    await bench.store.delete("q")
    assert await bench.port.attend(q.id, ONE) is False
    await bench.port.leave(q.id, ONE)


async def test_a_process_that_is_gone_is_there_no_more(bench: Bench) -> None:
    q = await bench.store.subscribe("q")
    await there(bench, ONE, OTHER)
    for holder in (ONE, OTHER):
        await bench.port.attend(q.id, holder)
    await bench.store.depart(ONE)
    await bench.port.departed(HERE)
    assert await bench.store.members(q) == {OTHER}
