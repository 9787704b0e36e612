"""What retention takes before it is settled, and what a purge takes, in memory and in the database."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from subscriptions.domain.delivery import Loss
from subscriptions.domain.model import NewMessage
from tests.contract.bench import Bench, data
from tests.contract.test_deliveries import bench, queue

__all__ = ["bench"]


def told(losses: Sequence[Loss]) -> list[tuple[str, int, int]]:
    return [(loss.channel, loss.first_seq, loss.missed) for loss in losses]


# --- gaps


async def test_a_claim_tells_what_went_and_gives_what_is_left(bench: Bench) -> None:
    q = await bench.store.subscribe("q", "a", "b", "c")
    for channel in "abc":
        await bench.publish(channel, *range(10))
    await bench.store.trim("a", 4)
    await bench.store.trim("b", 9)
    claimed = await bench.claim(q, 100)
    assert len(claimed.deliveries) == 4 + 9 + 10
    assert sorted(told(claimed.losses)) == [("a", 7, 6), ("b", 2, 1)]


async def test_it_is_told_until_somebody_said_that_it_heard(bench: Bench) -> None:
    q = await queue(bench, *range(10))
    await bench.store.trim("q", 3)
    first, again = await bench.claim(q), await bench.claim(q)
    assert told(first.losses) == told(again.losses) == [("q", 8, 7)]
    await bench.port.reported(q.id, first.losses)
    await bench.port.reported(q.id, again.losses)
    assert (await bench.claim(q)).losses == ()


async def test_what_is_lost_later_is_told_by_itself(bench: Bench) -> None:
    q = await queue(bench, *range(6))
    await bench.store.trim("q", 1)
    first = await bench.claim(q)
    await bench.ack(q, *first.deliveries)
    await bench.publish("q", *range(4))
    await bench.store.trim("q", 1)
    second = await bench.claim(q)
    assert told(second.losses) == [("q", 10, 5 + 3)]
    await bench.port.reported(q.id, first.losses)
    (left,) = (await bench.claim(q)).losses
    assert (told([left]), left.since) == ([("q", 10, 3)], first.losses[0].number + 1)
    await bench.port.reported(q.id, first.losses)
    assert (await bench.claim(q)).losses == (left,)
    await bench.port.reported(q.id, second.losses)
    assert (await bench.claim(q)).losses == ()


async def test_what_was_settled_in_time_is_not_lost(bench: Bench) -> None:
    q = await queue(bench, *range(10), ordering="none")
    await bench.ack(q, *await bench.take(q, 4))
    await bench.store.trim("q", 4)
    assert told((await bench.claim(q, 100)).losses) == [("q", 7, 2)]


async def test_what_was_given_back_and_is_gone_is_told(bench: Bench) -> None:
    q = await queue(bench, *range(3), ordering="none", backoff=[0])
    one, two, three = await bench.take(q)
    await bench.nack(q, one, two, delay=0)
    await bench.publish("q", 3)
    await bench.store.lose("q", 1)
    claimed = await bench.claim(q)
    assert (data(claimed.deliveries), told(claimed.losses)) == (["3"], [("q", 4, 2)])
    assert await bench.ack(q, three) == ["acked"]


async def test_what_died_ahead_of_its_turn_is_not_lost_too(bench: Bench) -> None:
    q = await bench.store.subscribe("q", "a", "b")
    await bench.publish("a", 0)
    await bench.publish("b", 1, 2, ttl=10)
    await bench.publish("b", 3, 4)
    await bench.store.pass_time(11)
    assert await bench.reap(q) == 2
    await bench.store.trim("b", 1)
    assert told((await bench.claim(q)).losses) == [("b", 4, 1)]


async def test_a_backlog_that_is_cut_tells_what_went_before(bench: Bench) -> None:
    q = await queue(bench, *range(10), max_backlog=1)
    await bench.store.trim("q", 4)
    assert await bench.reap(q) == 3
    claimed = await bench.claim(q)
    assert (data(claimed.deliveries), told(claimed.losses)) == (["9"], [("q", 7, 6)])


# --- purges


@pytest.mark.parametrize("channels", [("q",), ("q", "r"), ("*",)])
async def test_a_purge_takes_all_but_what_is_leased(bench: Bench, channels: tuple[str, ...]) -> None:
    q = await bench.store.subscribe("q", *channels)
    other = await bench.store.subscribe("other", *channels)
    await bench.publish("q", 1, 2, 3, key="a")
    await bench.publish("q", 4, 5, 6, 7)
    one, four, five = await bench.take(q, 3)
    assert data([one, four, five]) == ["1", "4", "5"]
    await bench.nack(q, four, delay=100)
    await bench.ack(q, five)
    assert await bench.store.purge("q") == 5
    assert await bench.store.purge("q") == 0
    assert await bench.take(q) == []
    assert await bench.ack(q, one) == ["acked"]
    await bench.publish("q", 8)
    assert data(await bench.take(q)) == ["8"]
    assert data(await bench.take(other)) == ["1", "4", "5", "6", "7", "8"]


async def test_a_purge_takes_only_what_the_filter_lets_through(bench: Bench) -> None:
    q = await bench.store.subscribe("q", filter={"types": ["x"]})
    kinds = "xyxx"
    await bench.store.append(*[NewMessage("q", b"1", type=kind) for kind in kinds])
    assert await bench.store.purge("q") == 3
    await bench.store.change("q", filter=None)
    assert await bench.take(q) == []


async def test_a_purge_makes_no_dead_letters_and_tells_of_what_had_gone(bench: Bench) -> None:
    q = await queue(bench, *range(10))
    await bench.store.trim("q", 4)
    assert await bench.store.purge("q") == 4
    assert told((await bench.claim(q)).losses) == [("q", 7, 6)]
    assert await bench.deaths() == []
