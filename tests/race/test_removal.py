"""Deleting a subscription only while it is empty, or unused: decided beside those who fill and use it."""

from __future__ import annotations

import asyncpg
import pytest

from subscriptions.domain.errors import GaplessError
from tests.conftest import Database
from tests.patience import eventually
from tests.race.queues import ACK, ALL, CLAIM, Queues, columns, step
from tests.race.support import blocked, sessions

ATTEND = "select gapless.attend($1, $2)"
HOLDER = 2**40 + 7


async def delete(queues: Queues, *, empty: bool = False, unused: bool = False) -> str:
    try:
        await queues.subscriptions.delete("default", "q", if_empty=empty, if_unused=unused)
    except GaplessError as error:
        return error.code.value
    return "deleted"


@pytest.mark.parametrize("state", ["ahead", "leased", "delayed", "waiting", "filtered"])
async def test_what_holds_a_message_is_not_empty(queues: Queues, state: str) -> None:
    subscription = await queues.subscribe("q", "q", "other", filter={"types": ["message"]})
    await queues.publish("q", 1, 2, key="k")
    if state == "filtered":
        await queues.take_all(subscription)
        await queues.publish("q", 3, type="passed-over")
        assert await delete(queues, empty=True) == "deleted"
        return
    if state != "ahead":
        (first,) = await queues.take(subscription, 1)
    if state == "delayed":
        await queues.nack(subscription, first, delay=1000)
    if state == "waiting":
        await queues.take(subscription)
        await queues.ack(subscription, first)
    assert await delete(queues, empty=True) == "conflict"
    assert (await queues.stats("q")).lag > 0
    assert await delete(queues) == "deleted"


@pytest.mark.parametrize("commits", [True, False])
async def test_an_ack_in_flight_decides_whether_it_is_empty(
    database: Database, queues: Queues, owner: asyncpg.Connection, commits: bool
) -> None:
    subscription = await queues.subscribe("q")
    await queues.publish("q", 1)
    taken = await queues.take(subscription)
    async with sessions(database.service_url, 1) as (session,):
        acking = await step(session, ACK, *columns(subscription, *taken))
        deleting = await blocked(owner, delete(queues, empty=True))
        await acking.end(commits=commits)
        assert await deleting == ("deleted" if commits else "conflict")


async def test_a_claim_in_flight_finds_it_gone_or_there(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    subscription = await queues.subscribe("q")
    async with sessions(database.service_url, 2) as (first, second):
        remove = "select gapless.remove_subscription(1, 'q', true, true)"
        removing = await step(first, remove)
        claiming = await blocked(owner, second.fetch(CLAIM, subscription.id, ALL, 1))
        await removing.end()
        assert '"gone"' in (await claiming)[-1]["note"]


@pytest.mark.parametrize("member_first", [True, False])
async def test_a_member_that_comes_in_this_moment(
    database: Database, queues: Queues, owner: asyncpg.Connection, member_first: bool
) -> None:
    """Either it is there and nothing is deleted, or it comes to nothing."""
    subscription = await queues.subscribe("q")
    async with sessions(database.service_url, 3) as (session, first, second):
        await session.fetch("select gapless.enter($1)", HOLDER)
        if member_first:
            coming = await step(first, ATTEND, subscription.id, HOLDER)
            deleting = await blocked(owner, delete(queues, unused=True))
            await coming.end()
            assert await deleting == "conflict"
            await second.fetch("select gapless.leave($1, $2)", subscription.id, HOLDER)
            assert await delete(queues, unused=True) == "deleted"
        else:
            removing = await step(first, "select gapless.remove_subscription(1, 'q', false, true)")
            coming_late = await blocked(owner, second.fetchval(ATTEND, subscription.id, HOLDER))
            await removing.end()
            assert await coming_late is False
    assert await owner.fetchval("select count(*) from gapless.attendance") == 0


async def test_members_of_a_process_that_is_gone_do_not_count(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    subscription = await queues.subscribe("q")
    async with sessions(database.service_url, 1) as (session,):
        await session.fetch("select gapless.enter($1)", HOLDER)
        assert await queues.deliveries.attend(subscription.id, HOLDER)
        await queues.deliveries.departed(["default"])
        assert await delete(queues, unused=True) == "conflict"

    async def missed() -> bool:
        await queues.deliveries.departed(["default"])
        since: bool = await owner.fetchval("select missing_since is not null from gapless.processes")
        return since

    await eventually(missed)
    assert await delete(queues, unused=True) == "conflict", "it may only have lost its session"
    await owner.execute("update gapless.processes set missing_since = missing_since - interval '3 seconds'")
    await queues.deliveries.departed(["default"])
    assert await owner.fetchval("select count(*) from gapless.attendance") == 0
    assert await delete(queues, unused=True) == "deleted"
