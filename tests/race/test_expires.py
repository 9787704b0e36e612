"""A subscription that nobody uses for as long as it says is removed, and none that is used just then."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from subscriptions.domain.delivery import Definition
from subscriptions.domain.errors import Code, GaplessError
from tests.conftest import Database
from tests.race.laws import check_queues
from tests.race.queues import ACK, ALL, CLAIM, Queues, columns, receipts, step
from tests.race.support import blocked, sessions

SECONDS = 100.0
HOLDER = 2**41 + 3
REMOVE = "select * from gapless.remove_unused('{default}', 3600, 100)"


async def rest(owner: asyncpg.Connection, seconds: float) -> None:
    """As if nobody had done anything for so long, while a service looked all the time."""
    await owner.execute("update gapless.progress set used_at = used_at - $1 * interval '1 s'", seconds)
    await owner.execute(
        "update gapless.subscriptions set changed_at = changed_at - $1 * interval '1 s'", seconds
    )


async def remove(queues: Queues) -> list[str]:
    removed = await queues.maintenance.remove_unused({"default"}, 3600, 100)
    assert all(namespace == "default" for namespace, _ in removed)
    return [name for _, name in removed]


async def test_removed_when_nobody_used_it_for_so_long(queues: Queues, owner: asyncpg.Connection) -> None:
    subscription = await queues.subscribe("q", expires=SECONDS)
    await queues.subscribe("for-ever", "q")
    await queues.publish("q", 1, 2)
    (letter,) = await queues.bury(subscription)
    await queues.dead_letters.replay("default", letter)
    assert await remove(queues) == [], "the first look only begins to count"
    await rest(owner, SECONDS - 1)
    assert await remove(queues) == []
    await queues.publish("q", 3)
    await rest(owner, 12)
    assert await remove(queues) == ["q"]
    assert await remove(queues) == []
    with pytest.raises(GaplessError) as gone:
        await queues.subscriptions.get("default", "q", stats=False)
    assert gone.value.code is Code.SUBSCRIPTION_NOT_FOUND
    assert [each.reason.value for each in await queues.letters()] == ["rejected"], "it is a dead letter again"
    assert await owner.fetchval("select count(*) from gapless.deliveries where subscription_id > 0") == 0
    await check_queues(owner)


USES = [
    "pull",
    "empty pull",
    "ack",
    "nack",
    "extend",
    "patch",
    "pause",
    "seek",
    "purge",
    "put",
    "policy",
    "bind",
]


@pytest.mark.parametrize("how", USES)
async def test_every_use_counts(queues: Queues, owner: asyncpg.Connection, how: str) -> None:
    subscription = await queues.subscribe("q", expires=SECONDS)
    await remove(queues)
    taken = []
    if how not in ("pull", "empty pull"):
        await queues.publish("q", 1)
        taken = await queues.take(subscription)
    elif how == "pull":
        await queues.publish("q", 1)
    await rest(owner, SECONDS + 50)
    match how:
        case "pull" | "empty pull":
            await queues.take(subscription)
        case "ack":
            assert await queues.ack(subscription, *taken) == ["acked"]
        case "nack":
            await queues.nack(subscription, *taken)
        case "extend":
            await queues.deliveries.extend(receipts(subscription, *taken), 1000)
        case "patch":
            await queues.subscriptions.patch("default", "q", None, {"ack_wait": 5})
        case "pause":
            await queues.subscriptions.pause("default", "q", True)
        case "seek":
            await queues.subscriptions.seek("default", "q", "latest")
        case "purge":
            await queues.subscriptions.purge("default", "q", ALL)
        case "put":
            await queues.subscriptions.put(
                "default", Definition("q", ("q",), "earliest", {"expires": SECONDS})
            )
        case "policy":
            await queues.subscriptions.patch("default", "q", None, {"expires": None})
            await rest(owner, SECONDS + 50)
            await queues.policy("p", "*", expires=SECONDS)
        case _:
            await queues.subscriptions.bind("default", "q", ("r",), True)
    await queues.owner.execute("update gapless.deliveries set at = now() - interval '1 h' where state = 0")
    assert await remove(queues) == []
    await rest(owner, SECONDS + 11)
    assert await remove(queues) == ["q"]


async def test_not_while_something_is_leased(queues: Queues, owner: asyncpg.Connection) -> None:
    subscription = await queues.subscribe("q", expires=SECONDS, ack_wait=1000)
    await queues.publish("q", 1)
    (taken,) = await queues.take(subscription)
    await remove(queues)
    await rest(owner, 2 * SECONDS)
    assert await remove(queues) == []
    await queues.end_in(taken, -1)
    assert await remove(queues) == ["q"]


async def test_not_while_it_has_a_member(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    subscription = await queues.subscribe("q", expires=SECONDS)
    await remove(queues)
    async with sessions(database.service_url, 1) as (session,):
        await session.fetch("select gapless.enter($1)", HOLDER)
        await queues.deliveries.attend(subscription.id, HOLDER)
        await rest(owner, 2 * SECONDS)
        assert await remove(queues) == []
        await rest(owner, SECONDS - 20)
        await queues.deliveries.leave(subscription.id, HOLDER)
        await rest(owner, SECONDS - 1)
        assert await remove(queues) == [], "it counts from when the member left"
    await rest(owner, 12)
    assert await remove(queues) == ["q"]


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("deed", ["claim", "ack", "patch", "put"])
async def test_whoever_uses_it_in_this_moment_wins(
    database: Database, queues: Queues, owner: asyncpg.Connection, deed: str, commits: bool
) -> None:
    subscription = await queues.subscribe("q", expires=SECONDS)
    await queues.publish("q", 1)
    taken = await queues.take(subscription)
    await remove(queues)
    await rest(owner, 2 * SECONDS)
    if deed != "ack":
        await queues.end_in(taken[0], -1)
    statements: dict[str, tuple[Any, ...]] = {
        "claim": (CLAIM, subscription.id, ALL, 1),
        "ack": (ACK, *columns(subscription, *taken)),
        "patch": (
            "select gapless.change_subscription(1, 'q', null, null, null, '{\"ack_wait\": 5}', false)",
        ),
        "put": ("select * from gapless.create_subscription(1, 'q', '{q}', '{q}', null, 'earliest', '{}')",),
    }
    async with sessions(database.service_url, 1) as (session,):
        using = await step(session, *statements[deed])
        if deed in ("claim", "ack"):
            assert await remove(queues) == [], "not waited for"
            await using.end(commits=commits)
            if not commits and deed == "ack":
                await queues.end_in(taken[0], -1)
            removed = await remove(queues)
        else:
            # The service gives up a wait for the lock soon; the owner's session here waits.
            await owner.execute("set lock_timeout = 0")
            async with sessions(database.owner_url, 1) as (other,):
                removing = await blocked(owner, other.fetch(REMOVE.replace("3600", "7200")))
                await using.end(commits=commits)
                removed = [row["subscription"] for row in await removing]
    assert removed == ([] if commits else ["q"])


async def test_who_comes_while_it_is_removed_finds_it_gone(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    subscription = await queues.subscribe("q", expires=SECONDS)
    await remove(queues)
    await rest(owner, 2 * SECONDS)
    async with sessions(database.service_url, 1) as (session,):
        removing = await step(session, REMOVE)
        assert [row["subscription"] for row in removing.rows] == ["q"]
        claiming = await blocked(owner, queues.claim(subscription))
        await removing.end()
        assert (await claiming).gone
    await queues.subscribe("q", expires=SECONDS)
    await remove(queues)
    await rest(owner, 2 * SECONDS)
    async with sessions(database.service_url, 1) as (session,):
        removing = await step(session, REMOVE)
        definition = Definition("q", ("q",), "earliest", {"expires": SECONDS})
        putting = await blocked(owner, queues.subscriptions.put("default", definition))
        await removing.end()
        assert (await putting)[1], "who asks for it in that moment gets a new one"


async def test_time_without_a_service_does_not_count(queues: Queues, owner: asyncpg.Connection) -> None:
    await queues.subscribe("q", expires=SECONDS)
    await remove(queues)
    await rest(owner, 2 * SECONDS)
    await owner.execute("update gapless.looks set at = at - interval '2 h'")
    assert await remove(queues) == []
    assert await remove(queues) == []
    await rest(owner, SECONDS + 11)
    assert await queues.maintenance.remove_unused({"elsewhere"}, 3600, 100) == []
    assert await remove(queues) == ["q"]
