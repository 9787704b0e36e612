"""A filter that changes holds from the next decision on, for everything that is not leased."""

from __future__ import annotations

import json
from typing import Any

import asyncpg
import pytest

from subscriptions.domain.delivery import Subscription
from subscriptions.domain.model import NewMessage
from tests.conftest import Database
from tests.race.laws import check_queues
from tests.race.queues import CLAIM, NACK, Queues, bodies, receipts, step
from tests.race.support import blocked, sessions

ONLY_A: dict[str, Any] = {"filter": {"types": ["a"]}}


async def mixed(queues: Queues, subscription: str = "q", **settings: Any) -> Subscription:
    """Of types a and b in turn, in two lanes."""
    made = await queues.subscribe(subscription, "q", **settings)
    await queues.append(
        *[NewMessage("q", b"%d" % n, type="ab"[n % 2], key="kl"[n // 2 % 2]) for n in range(8)]
    )
    return made


async def change(queues: Queues, settings: dict[str, Any]) -> None:
    await queues.subscriptions.patch("default", "q", None, settings)


async def waiting(queues: Queues) -> tuple[int, int, int, int]:
    stats = await queues.stats("q")
    return stats.lag, stats.waiting, stats.delayed, stats.in_flight


async def test_what_waits_and_does_not_match_any_more_is_dropped_at_once(
    queues: Queues, owner: asyncpg.Connection
) -> None:
    """0 and 2 are leased, all others wait behind them: 1 3 5 7 are of the other type."""
    subscription = await mixed(queues)
    leased = await queues.take(subscription)
    assert (bodies(leased), await waiting(queues)) == (["0", "2"], (6, 6, 0, 2))
    await change(queues, ONLY_A)
    assert await waiting(queues) == (2, 2, 0, 2)
    assert await queues.ack(subscription, *leased) == ["acked", "acked"]
    assert bodies(await queues.take_all(subscription)) == ["4", "6"]
    assert await waiting(queues) == (0, 0, 0, 0)
    stats = await queues.stats("q")
    assert (stats.acked, stats.dead_lettered, stats.removed_by_retention) == (4, 0, 0)
    assert not await queues.letters()
    await check_queues(owner)


async def test_the_first_of_a_lane_that_is_dropped_lets_the_next_have_its_turn(
    queues: Queues, owner: asyncpg.Connection
) -> None:
    subscription = await mixed(queues)
    await queues.nack(subscription, *await queues.take(subscription), delay=1000)
    await change(queues, {"filter": {"types": ["b"]}})
    assert bodies(await queues.take_all(subscription)) == ["1", "3", "5", "7"]
    await check_queues(owner)


@pytest.mark.parametrize("ordering", ["key", "none"])
@pytest.mark.parametrize("how", ["ack", "nack", "release", "deadline", "reject"])
async def test_a_lease_goes_on_and_what_comes_back_of_it_is_dropped(
    queues: Queues, owner: asyncpg.Connection, how: str, ordering: str
) -> None:
    subscription = await mixed(queues, ordering=ordering, ack_wait=1000)
    leased = await queues.take(subscription)
    await change(queues, {"filter": {"keys": ["m"]}})
    assert await waiting(queues) == (0, 0, 0, len(leased))
    match how:
        case "ack":
            assert await queues.ack(subscription, *leased) == ["acked"] * len(leased)
        case "nack":
            assert await queues.nack(subscription, *leased, delay=0) == ["nacked"] * len(leased)
        case "release":
            await queues.deliveries.release(receipts(subscription, *leased), delivered=True)
        case "deadline":
            await queues.pass_time(1001)
        case "reject":
            await queues.reject(subscription, *leased)
    assert await queues.take(subscription) == []
    assert await waiting(queues) == (0, 0, 0, 0)
    assert len(await queues.letters()) == (len(leased) if how == "reject" else 0)
    await queues.publish("q", '"new"', key="m")
    assert bodies(await queues.take(subscription)) == ['"new"']
    await check_queues(owner)


async def test_what_comes_back_is_dropped_though_nobody_takes(queues: Queues) -> None:
    """The reaper finds it, and makes no dead letter of it though its time is over."""
    subscription = await mixed(queues, ordering="none", message_ttl=100)
    leased = await queues.take(subscription)
    await change(queues, ONLY_A)
    await queues.nack(subscription, *leased, delay=50)
    await queues.pass_time(101)
    assert subscription.id in await queues.deliveries.due({"default"})
    await queues.reap(subscription)
    assert sorted(x.message.data or b"" for x in await queues.letters()) == [b"0", b"2", b"4", b"6"]
    assert await waiting(queues) == (0, 0, 0, 0)
    assert subscription.id not in await queues.deliveries.due({"default"})


async def test_a_change_of_order_between_hides_nothing_from_it(
    queues: Queues, owner: asyncpg.Connection
) -> None:
    """What came back would wait in a lane, and come later."""
    subscription = await mixed(queues, ordering="none")
    leased = await queues.take(subscription)
    await change(queues, ONLY_A)
    await queues.nack(subscription, leased[0], *leased[2:], delay=0)
    await change(queues, {"ordering": "channel"})
    assert await queues.take(subscription) == []
    await queues.ack(subscription, leased[1])
    assert bodies(await queues.take_all(subscription)) == ["0", "2", "4", "6"]
    await check_queues(owner)


async def test_what_was_passed_over_does_not_come_with_a_wider_filter(queues: Queues) -> None:
    """It lies before the place where the subscription is."""
    subscription = await mixed(queues, **ONLY_A, ordering="none")
    assert bodies(await queues.take_all(subscription, 2)) == ["0", "2", "4", "6"]
    await queues.publish("q", 8, type="b")
    await change(queues, {"filter": None})
    assert bodies(await queues.take_all(subscription)) == ["8"]


async def test_a_policy_changes_it_for_the_next_decision(queues: Queues) -> None:
    subscription = await mixed(queues)
    leased = await queues.take(subscription)
    await queues.policy("p", "q", filter={"types": ["a"]})
    assert subscription.id in await queues.deliveries.due({"default"})
    await queues.ack(subscription, *leased)
    assert bodies(await queues.take_all(subscription)) == ["4", "6"]


async def test_a_claim_under_way_and_a_change_wait_for_one_another(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    subscription = await mixed(queues, ordering="none")
    settled = await queues.settled()
    async with sessions(database.service_url, 1) as (session,):
        claiming = await step(session, CLAIM, subscription.id, settled, 3)
        changing = await blocked(owner, change(queues, ONLY_A))
        await claiming.end()
        await changing
        assert (await waiting(queues))[3] == 3
        leases = [row for row in claiming.rows if row["kind"] == 0]
        ids, fences = [row["id"] for row in leases], [row["lease"] for row in leases]
        nacking = await step(session, NACK, subscription.id, ids, fences, False)
        taking = await blocked(owner, queues.take(subscription))
        await nacking.end()
        assert [json.loads(body) for body in bodies(await taking)] == [4, 6]
    await queues.pass_time(10)
    assert bodies(await queues.take(subscription)) == ["0", "2"]
