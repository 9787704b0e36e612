"""Arguments that are wrong: a settled id of a history that is gone, or one that nobody ever had. The role of
the service can give them; no message is lost by them, and no word of a loss."""

from __future__ import annotations

import asyncpg
import pytest

from tests.conftest import Database
from tests.race.queues import CLAIM, REAP, Queues, bodies
from tests.race.support import IMMEDIATE, appenders, blocked, check_log, one, publish, rows, sessions, stored

HIGHEST = 9007199254740991
DROP = "select gapless.drop_segment($1)"
ROLL = "select gapless.roll_segment(0)"
MOVE_ON = "select setval('gapless.message_id', upper) from gapless.segments where lower = 1"
"""The log goes on in the next segment."""


async def test_the_segment_that_ids_come_from_and_those_ahead_are_not_dropped(
    database: Database, owner: asyncpg.Connection
) -> None:
    """Not even if everything in it is gone, and right after a fence."""
    ids: list[int] = []
    async with sessions(database.service_url, 1) as (service,), appenders(database, 1) as (appender,):
        for fenced in (False, True):
            ids.append(stored((await appender.append([one("a")]))[0]).positions[0].id)
            await service.execute("select gapless.delete_channel(1, 'a')")
            if fenced:
                await owner.execute("delete from gapless.lives; select gapless.fence()")
            await service.execute(ROLL)
            while await service.fetchval(DROP, HIGHEST) is not None:
                pass
            ids.append(stored((await appender.append([one("a")]))[0]).positions[0].id)
    assert ids == sorted(ids)
    last_id = await owner.fetchval("select gapless_internal.last_id()")
    lowest = await owner.fetchrow("select lower, upper from gapless.segments order by lower limit 1")
    assert lowest is not None
    assert lowest["lower"] <= last_id < lowest["upper"]
    await check_log(owner)


@pytest.mark.usefixtures("as_it_is")
async def test_a_segment_is_not_dropped_before_its_publishers_are_gone(
    database: Database, owner: asyncpg.Connection
) -> None:
    async with (
        sessions(database.owner_url, 1) as (session,),
        sessions(database.service_url, 1) as (service,),
    ):
        transaction = session.transaction()
        await transaction.start()
        await publish(session, "a")
        await session.execute(IMMEDIATE)
        await owner.execute(MOVE_ON)
        with pytest.raises(asyncpg.LockNotAvailableError):
            await service.execute(DROP, HIGHEST)
        await transaction.commit()
        assert await service.fetchval(DROP, HIGHEST) is None
    assert len(await rows(owner)) == 1


async def test_a_message_that_comes_while_a_drop_waits_is_kept(
    database: Database, owner: asyncpg.Connection
) -> None:
    async with (
        sessions(database.owner_url, 1) as (session,),
        sessions(database.service_url, 1) as (service,),
    ):
        transaction = session.transaction()
        await transaction.start()
        await publish(session, "a")
        await session.execute(IMMEDIATE)
        await owner.execute(MOVE_ON)
        dropping = await blocked(owner, service.fetchval(DROP, HIGHEST))
        await transaction.commit()
        with pytest.raises(asyncpg.LockNotAvailableError, match="has appeared"):
            await dropping
    assert len(await rows(owner)) == 1


@pytest.mark.parametrize("how", ["create", "seek", "purge"])
async def test_a_subscription_passes_nothing_that_is_to_come(
    database: Database, queues: Queues, owner: asyncpg.Connection, how: str
) -> None:
    """A publisher has an id and has not committed; others have published since."""
    if how != "create":
        await queues.subscribe("q", ">", ordering="none")
    async with sessions(database.owner_url, 1) as (session,):
        transaction = session.transaction()
        await transaction.start()
        await publish(session, "late", "1")
        await session.execute(IMMEDIATE)
        await queues.publish("a", 2)
        statement = {
            "create": "select gapless.create_subscription(1, 'q', '{>}', '{}', '^.+$', 'latest',"
            """ '{"ordering": "none"}', $1)""",
            "seek": "select gapless.seek_subscription(1, 'q', 'latest', $1)",
            "purge": "select gapless.purge_subscription(1, 'q', $1, 100, $1)",
        }[how]
        await owner.execute(statement, HIGHEST)
        await transaction.commit()
    await queues.publish("a", 3)
    taken = bodies(await queues.take_all(await queues.subscriptions.get("default", "q", stats=False)))
    assert {"1", "3"} <= set(taken)


@pytest.mark.parametrize("how", ["claim", "reap", "create", "seek", "purge"])
async def test_before_the_fence_no_settled_id_is_believed(
    database: Database, queues: Queues, owner: asyncpg.Connection, how: str
) -> None:
    """A standby was promoted. A publisher that was prepared, and that had committed in the history that is
    gone, may commit here yet."""
    if how != "create":
        subscription = await queues.subscribe("q", ">", ordering="none", max_backlog=1)
    async with sessions(database.owner_url, 1) as (session,):
        transaction = session.transaction()
        await transaction.start()
        await publish(session, "late", "1")
        await session.execute(IMMEDIATE)
        (lost,) = await queues.publish("a", 2)
        await owner.execute("delete from gapless.lives")
        statement, arguments = {
            "claim": (CLAIM, [lost, 10]),
            "reap": (REAP, [lost]),
            "create": (
                "select gapless.create_subscription(1, 'q', '{>}', '{}', '^.+$', 'latest',"
                """ '{"ordering": "none"}', $1)""",
                [lost],
            ),
            "seek": ("select gapless.seek_subscription(1, 'q', 'latest', $1)", [lost]),
            "purge": ("select gapless.purge_subscription(1, 'q', $1, 100)", [lost]),
        }[how]
        if how in ("claim", "reap"):
            arguments = [subscription.id, *arguments]
        await owner.execute(statement, *arguments)
        await transaction.commit()
    taken = await queues.take_all(await queues.subscriptions.get("default", "q", stats=False))
    assert "1" in bodies(taken)


@pytest.mark.parametrize("absent", [1e9, float("inf"), float("nan")])
async def test_whoever_could_not_use_a_subscription_keeps_it_whatever_the_service_calls_absent(
    queues: Queues, owner: asyncpg.Connection, absent: float
) -> None:
    await queues.subscribe("q", expires=60.0)
    assert await queues.maintenance.remove_unused({"default"}, absent, 100) == []
    await owner.execute(
        "update gapless.looks set at = at - interval '2 days';"
        "update gapless.progress set used_at = used_at - interval '2 days';"
        "update gapless.subscriptions set changed_at = changed_at - interval '2 days'"
    )
    assert await queues.maintenance.remove_unused({"default"}, absent, 100) == []


@pytest.mark.parametrize(
    ("beyond", "missed"), [(0, HIGHEST), (0, -HIGHEST), (HIGHEST, 1)], ids=["more", "less", "unknown number"]
)
async def test_a_loss_stays_until_it_was_told_whatever_was_told_before(
    queues: Queues, owner: asyncpg.Connection, beyond: int, missed: int
) -> None:
    subscription = await queues.subscribe("q")
    for count in (5, 3):
        await queues.publish("q", *range(count + 1))
        await owner.execute("""select gapless.set_channel(1, 'q', '{"max_messages": 1}', false)""")
        await queues.maintenance.trim_channels(100)
        claimed = await queues.claim(subscription)
        await queues.ack(subscription, *claimed.deliveries)
        if count == 5:
            (first,) = claimed.losses
    (all_of_it,) = claimed.losses
    await owner.execute(
        "select gapless.told_gaps($1, $2, $3, $4)",
        subscription.id,
        [first.channel_id],
        [first.number + beyond],
        [missed],
    )
    (left,) = (await queues.claim(subscription)).losses
    assert 1 <= left.missed <= all_of_it.missed
    assert left.since <= left.number
    await queues.deliveries.reported(subscription.id, [left])
    assert (await queues.claim(subscription)).losses == ()
