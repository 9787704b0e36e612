"""Purging beside those who publish, take, settle and seek: what is leased stays, and nothing else is lost."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import asyncpg
import pytest

from subscriptions.domain.delivery import Subscription
from subscriptions.domain.model import NewMessage
from tests.conftest import Database
from tests.race.laws import check_queues, ledger, nothing_left
from tests.race.queues import ACK, ALL, CLAIM, NACK, Queues, bodies, columns, step
from tests.race.support import blocked, publish, sessions

PURGE = "select purged, more from gapless.purge_subscription(1, 'q', $1, $2)"
FILTERS: list[dict[str, Any]] = [{}, {"filter": {"types": ["message"]}}]


async def purge(queues: Queues, settled: int | None = None) -> int:
    return await queues.subscriptions.purge(
        "default", "q", await queues.settled() if settled is None else settled
    )


async def books(owner: asyncpg.Connection, subscription: Subscription) -> int:
    """All that was ever for it."""
    purged = await owner.fetchval(
        "select purged from gapless.progress where subscription_id = $1", subscription.id
    )
    return sum((await ledger(owner, subscription)).values()) + int(purged)


@pytest.mark.parametrize("channels", [("q",), ("q", "r"), ("*",)])
@pytest.mark.parametrize("settings", FILTERS)
async def test_all_but_what_is_leased_goes(
    queues: Queues, owner: asyncpg.Connection, channels: tuple[str, ...], settings: dict[str, Any]
) -> None:
    """Ready, delayed, waiting, ahead; another subscription and the log keep all of it."""
    subscription = await queues.subscribe("q", *channels, **settings)
    other = await queues.subscribe("other", *channels)
    await queues.publish("q", 1, 2, 3, key="a")
    await queues.publish("q", *range(4, 20))
    await queues.append(NewMessage("q", b"20", type="other"))
    leased, *others = await queues.take(subscription, 6)
    assert bodies([leased]) == ["1"]
    await queues.nack(subscription, others[0], delay=1000)
    await queues.nack(subscription, others[1], delay=0)
    acked = await queues.ack(subscription, *others[2:4])
    held = 1 + len(others[4:])
    total = 20 if not settings else 19
    lag = (await queues.stats("q")).lag
    assert await purge(queues) == lag == total - held - len(acked)
    stats = await queues.stats("q")
    assert (stats.lag, stats.in_flight, stats.delayed, stats.purged) == (0, held, 0, lag)
    assert (stats.removed_by_retention, stats.dead_lettered) == (0, 0)
    assert await books(owner, subscription) == total
    assert await queues.ack(subscription, leased, *others[4:]) == ["acked"] * held
    assert await purge(queues) == 0
    await queues.publish("q", 21, key="a")
    assert bodies(await queues.take_all(subscription)) == ["21"]
    assert len(await queues.take_all(other)) == 21
    await nothing_left(owner)


@pytest.mark.parametrize("settings", FILTERS)
async def test_what_is_not_settled_is_neither_purged_nor_lost(
    database: Database, queues: Queues, settings: dict[str, Any]
) -> None:
    """A publisher holds an id; what lies above it in another channel, and itself when it commits, stays."""
    subscription = await queues.subscribe("q", "a", "b", **settings)
    await queues.publish("b", 0)
    await queues.publish("a", 1)
    await queues.settled()
    async with sessions(database.owner_url, 1) as (session,):
        transaction = session.transaction()
        await transaction.start()
        await publish(session, "b", "2")
        await session.execute("set constraints all immediate")
        await session.execute("select gapless_internal.append_outbox()")
        await queues.publish("a", 3)
        assert await purge(queues) == 2
        assert (await queues.stats("q")).lag == 1
        await transaction.commit()
    assert bodies(await queues.take_all(subscription)) == ["2", "3"]


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("deed", ["claim", "ack", "nack"])
async def test_a_decision_in_flight_is_waited_for(
    database: Database, queues: Queues, owner: asyncpg.Connection, deed: str, commits: bool
) -> None:
    subscription = await queues.subscribe("q")
    await queues.publish("q", 1, 2, 3)
    taken = [] if deed == "claim" else await queues.take(subscription, 1)
    statements: dict[str, tuple[Any, ...]] = {
        "claim": (CLAIM, subscription.id, ALL, 1),
        "ack": (ACK, *columns(subscription, *taken)),
        "nack": (NACK, subscription.id, *columns(subscription, *taken)[1:], False),
    }
    async with sessions(database.service_url, 1) as (session,):
        first = await step(session, *statements[deed])
        second = await blocked(owner, purge(queues, ALL))
        await first.end(commits=commits)
        left = {"claim": 1, "ack": 0, "nack": 0} if commits else {"claim": 0, "ack": 1, "nack": 1}
        assert await second == {"claim": 3, "ack": 2, "nack": 2}[deed] + {
            ("claim", True): -1,
            ("nack", True): 1,
        }.get((deed, commits), 0)
    stats = await queues.stats("q")
    assert (stats.in_flight, stats.lag) == (left[deed], 0)
    assert await books(owner, subscription) == 3


@pytest.mark.parametrize("commits", [True, False])
async def test_a_claim_waits_for_a_purge_in_flight(
    database: Database, queues: Queues, owner: asyncpg.Connection, commits: bool
) -> None:
    subscription = await queues.subscribe("q")
    await queues.publish("q", 1, 2)
    async with sessions(database.service_url, 1) as (session,):
        first = await step(session, PURGE, ALL, 100)
        assert tuple(first.rows[0]) == (2, False)
        second = await blocked(owner, queues.take(subscription))
        await first.end(commits=commits)
        assert bodies(await second) == ([] if commits else ["1", "2"])


async def test_a_piece_is_bounded(queues: Queues, owner: asyncpg.Connection) -> None:
    """Rows under way, and what a filter looks at; each piece tells how far it came."""
    subscription = await queues.subscribe(
        "q", "q", "r", ordering="none", filter={"types": ["message"]}, max_in_flight=100000
    )
    for _ in range(4):
        await queues.publish("q", *range(1000))
        await queues.publish("r", *range(100), type="other")
    for _ in range(3):
        await queues.nack(subscription, *await queues.take(subscription, 500), delay=1000)
    settled, pieces, upto, moves = await queues.settled(), [], None, None
    statement = "select * from gapless.purge_subscription(1, 'q', $1, 200, $2, $3)"
    while True:
        (row,) = await owner.fetch(statement, settled, upto, moves)
        await check_queues(owner)
        upto, moves = row["upto"], row["moves"]
        pieces.append(row["purged"])
        if not row["more"]:
            break
    assert sum(pieces) == 4000
    assert max(pieces) <= 200 + 10 * 200
    assert await books(owner, subscription) == 4000
    await nothing_left(owner)


async def test_a_seek_that_comes_between_ends_it(queues: Queues, owner: asyncpg.Connection) -> None:
    subscription = await queues.subscribe("q", ordering="none")
    await queues.publish("q", *range(10))
    await queues.nack(subscription, *await queues.take(subscription, 5), delay=1000)
    statement = "select * from gapless.purge_subscription(1, 'q', $1, 2, $2, $3)"
    (row,) = await owner.fetch(statement, ALL, None, None)
    assert row["more"]
    await queues.subscriptions.seek("default", "q", "earliest")
    (late,) = await owner.fetch(statement, ALL, row["upto"], row["moves"])
    assert (late["purged"], late["more"]) == (0, False)
    assert len(await queues.take_all(subscription)) == 10


async def test_what_comes_while_it_runs_stays(queues: Queues, owner: asyncpg.Connection) -> None:
    subscription = await queues.subscribe("q")
    await queues.publish("q", 1, 2, 3, key="k")
    await queues.nack(subscription, *await queues.take(subscription), delay=0)
    statement = "select * from gapless.purge_subscription(1, 'q', $1, 1, $2, $3)"
    (row,) = await owner.fetch(statement, ALL, None, None)
    await queues.publish("q", 4, key="k")
    while row["more"]:
        (row,) = await owner.fetch(statement, ALL, row["upto"], row["moves"])
    await check_queues(owner)
    assert bodies(await queues.take_all(subscription)) == ["4"]


async def test_what_retention_took_before_is_not_purged(queues: Queues, owner: asyncpg.Connection) -> None:
    subscription = await queues.subscribe("q")
    await queues.publish("q", *range(10))
    await owner.execute("""select gapless.set_channel(1, 'q', '{"max_messages": 4}', false)""")
    await queues.maintenance.trim_channels(100)
    assert await purge(queues) == 4
    assert (await queues.stats("q")).removed_by_retention == 6
    assert await books(owner, subscription) == 10


async def test_a_start_in_time_counts_from_there(queues: Queues, owner: asyncpg.Connection) -> None:
    await queues.publish("q", 1, 2, 3)
    await queues.pass_time(60)
    start: datetime = await owner.fetchval("select clock_timestamp() - interval '30 s'")
    await queues.subscribe("q", start=start.isoformat())
    await queues.publish("q", 4, 5)
    assert await purge(queues) == 2


async def test_purged_while_others_publish_and_take(queues: Queues, owner: asyncpg.Connection) -> None:
    """Each message is acked once, or purged once."""
    subscription = await queues.subscribe("q", "a", "b", ordering="none")

    async def send() -> None:
        for n in range(80):
            await queues.publish("ab"[n % 2], *range(n % 7 + 1))

    async def work() -> int:
        done = 0
        while not sending.done():
            taken = await queues.take(subscription, 5)
            done += (await queues.ack(subscription, *taken)).count("acked") if taken else 0
        return done

    async def clear() -> int:
        done = 0
        while not sending.done():
            done += await purge(queues)
        return done

    sending = asyncio.ensure_future(send())
    acked, again, purged = await asyncio.gather(work(), work(), clear())
    await sending
    purged += await purge(queues)
    total = sum(n % 7 + 1 for n in range(80))
    assert acked + again + purged == total
    assert await books(owner, subscription) == total
    await nothing_left(owner)


@pytest.mark.parametrize("settings", FILTERS)
async def test_a_length_without_its_statistics(queues: Queues, settings: dict[str, Any]) -> None:
    subscription = await queues.subscribe("q", "q", "r", **settings)
    await queues.publish("q", *range(30), key="k")
    await queues.publish("r", *range(5))
    await queues.publish("r", 0, type="other")
    taken = await queues.take(subscription, 4)
    await queues.nack(subscription, taken[0], delay=1000)
    length = await queues.subscriptions.length("default", "q")
    stats = await queues.stats("q")
    assert (length.lag, length.in_flight, length.exact) == (stats.lag, stats.in_flight, True)
    assert length.lag + length.in_flight == (36 if not settings else 35)


@pytest.mark.parametrize("count", [9, 10, 11, 40])
async def test_a_length_says_whether_it_is_exact(
    queues: Queues, owner: asyncpg.Connection, count: int
) -> None:
    await queues.subscribe("q", filter={"types": ["message"]})
    await queues.publish("q", *range(count))
    (row,) = await owner.fetch(
        "select l.* from gapless.subscriptions s cross join lateral gapless.length_of(s, 10) l"
    )
    assert row["waiting"] == min(count, 10)
    assert row["exact"] is (count < 10)
