"""Dead letters that several give back, delete or purge at once: each is given back once. What comes of one
replay: tests/contract/test_replay.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import asyncpg
import pytest

from subscriptions.domain.delivery import DeadLetterFilter, Subscription
from subscriptions.domain.errors import Code, GaplessError
from tests.conftest import Database
from tests.race.laws import check_queues, nothing_left
from tests.race.queues import Queues, attempts, bodies, step
from tests.race.support import blocked, sessions

ALL_LETTERS = DeadLetterFilter("default")
REPLAY = "select * from gapless.replay(1, $1)"
MANY = 10_000
AT_ONCE = 8


async def outcome(work: Awaitable[object]) -> Any:
    """What it gave, or the code of the error."""
    try:
        return await work
    except GaplessError as error:
        return (error.code, error.detail)


def gone(letter: int) -> tuple[Code, str]:
    return (Code.DEAD_LETTER_NOT_FOUND, f"dead letter entry not found: {letter}")


async def one_dead(queues: Queues, **settings: Any) -> tuple[Subscription, int]:
    subscription = await queues.subscribe("q", **settings)
    await queues.publish("q", 1)
    (letter,) = await queues.bury(subscription)
    return subscription, letter


@pytest.mark.parametrize("commits", [True, False])
async def test_two_replays(
    database: Database, queues: Queues, owner: asyncpg.Connection, commits: bool
) -> None:
    subscription, letter = await one_dead(queues)
    async with sessions(database.service_url, 1) as (session,):
        first = await step(session, REPLAY, letter)
        assert dict(first.rows[0]) == {"status": 0, "subscription": "q", "message_id": 1}
        second = await blocked(owner, outcome(queues.dead_letters.replay("default", letter)))
        await first.end(commits=commits)
        assert await second == (gone(letter) if commits else ("q", 1))
    taken = await queues.take(subscription)
    assert attempts(taken) == [1]
    assert await queues.take(subscription) == []
    await queues.ack(subscription, *taken)
    assert await outcome(queues.dead_letters.replay("default", letter)) == gone(letter)
    stats = await queues.stats("q")
    assert (stats.lag, stats.in_flight, stats.acked, stats.dead_letters, stats.dead_lettered) == (
        0,
        0,
        1,
        0,
        1,
    )
    await nothing_left(owner)


@pytest.mark.parametrize("ordering", [pytest.param("key", marks=pytest.mark.drill), "none"])
async def test_eight_replays_of_everything(queues: Queues, owner: asyncpg.Connection, ordering: str) -> None:
    subscription = await queues.subscribe("q", ordering=ordering, max_backlog=1)
    for first in range(0, MANY, 1000):
        await queues.publish("q", *range(first, first + 1000), key="k")
    await queues.reap(subscription)
    assert (await queues.stats("q")).dead_letters == MANY - 1
    await queues.subscriptions.patch("default", "q", None, {"max_backlog": None})
    counts = await asyncio.gather(*(queues.dead_letters.replay_all(ALL_LETTERS) for _ in range(AT_ONCE)))
    assert sum(replayed for replayed, _ in counts) == MANY - 1
    assert await queues.dead_letters.replay_all(ALL_LETTERS) == (0, 0)
    await check_queues(owner)
    assert (await queues.stats("q")).lag == MANY
    if ordering == "none":
        taken = await queues.take_all(subscription)
        assert sorted(map(int, bodies(taken))) == list(range(MANY))
        assert set(attempts(taken)) == {1}
        await nothing_left(owner)
    else:
        assert bodies(await queues.take(subscription)) == ["0"]


async def test_replay_of_all_passes_over_what_another_holds(database: Database, queues: Queues) -> None:
    subscription = await queues.subscribe("q", ordering="none")
    await queues.publish("q", *range(5))
    letters = await queues.bury(subscription, 5)
    async with sessions(database.owner_url, 1) as (session,):
        # Its row is taken, and not yet the subscription's lock: so the others go on.
        held = await step(session, "select from gapless.dead_letters where id = $1 for update", letters[2])
        assert await queues.dead_letters.replay_all(ALL_LETTERS) == (4, 1)
        assert await queues.dead_letters.purge(ALL_LETTERS) == 0
        await held.end()
    assert await queues.dead_letters.replay_all(ALL_LETTERS) == (1, 0)
    assert sorted(bodies(await queues.take(subscription))) == ["0", "1", "2", "3", "4"]


async def test_what_dies_again_meanwhile_is_not_replayed_again(queues: Queues) -> None:
    subscription = await queues.subscribe("q", max_deliver=1)
    await queues.publish("q", *range(3))
    first = await queues.bury(subscription, 3)

    async def fail_at_once() -> None:
        for _ in range(30):
            await queues.reject(subscription, *await queues.take(subscription))

    (replayed, _), _ = await asyncio.gather(queues.dead_letters.replay_all(ALL_LETTERS), fail_at_once())
    assert replayed == 3
    assert (await queues.stats("q")).dead_lettered <= 6
    assert not {letter.id for letter in await queues.letters()} & set(first)


# --- some, and slowly


async def dead(queues: Queues, count: int, **settings: Any) -> Subscription:
    """A subscription that gave up on so many messages."""
    subscription = await queues.subscribe("q", **settings)
    await queues.publish("q", *range(count), key="k")
    for _ in range(count):
        await queues.bury(subscription)
    return subscription


async def test_with_another_order_it_still_waits_for_its_time(
    queues: Queues, owner: asyncpg.Connection
) -> None:
    subscription = await dead(queues, 3)
    await queues.publish("q", '"new"', key="k")
    await queues.dead_letters.replay_all(ALL_LETTERS, rate=0.01)
    assert bodies(await queues.take_all(subscription)) == ["0"]
    await queues.pass_time(100)
    assert bodies(await queues.take_all(subscription)) == ["1"]
    await queues.subscriptions.patch("default", "q", None, {"ordering": "channel"})
    assert bodies(await queues.take_all(subscription)) == []
    await queues.pass_time(100)
    assert bodies(await queues.take_all(subscription)) == ["2", '"new"']
    await nothing_left(owner)


async def test_a_dry_run_holds_nothing(database: Database, queues: Queues, owner: asyncpg.Connection) -> None:
    """What another replay holds counts as there, and nobody waits for whoever only asks."""
    _, letter = await one_dead(queues)
    async with sessions(database.service_url, 2) as (session, asking):
        asked = await step(asking, "select * from gapless.replayable(1, null, null, null, null, null)")
        assert tuple(asked.rows[0]) == (1, 0)
        replaying = await step(session, REPLAY, letter)
        assert await queues.dead_letters.replayable(ALL_LETTERS) == (1, 0)
        await replaying.end()
        await asked.end()
    assert await queues.dead_letters.replayable(ALL_LETTERS) == (0, 0)


# --- against delete and purge


@pytest.mark.parametrize("statement", ["delete_dead_letter(1, $1)", "replay(1, $1)", "purge_dead_letters"])
@pytest.mark.parametrize("commits", [True, False])
async def test_a_letter_that_is_going(
    database: Database, queues: Queues, owner: asyncpg.Connection, statement: str, commits: bool
) -> None:
    """Who comes second waits, and finds it gone, or has it."""
    subscription, letter = await one_dead(queues)
    arguments = (
        statement if "(" in statement else f"{statement}(1, null, null, null, array[$1::bigint], null, 9)"
    )
    for second in (queues.dead_letters.replay, queues.dead_letters.delete):
        async with sessions(database.service_url, 1) as (session,):
            first = await step(session, f"select (gapless.{arguments})", letter)
            waiting = await blocked(owner, outcome(second("default", letter)))
            await first.end(commits=commits)
            answer = await waiting
        if commits:
            assert answer == gone(letter)
            break
        assert answer in (("q", 1), None)
        if answer == ("q", 1):
            (letter,) = await queues.bury(subscription)
    replayed = commits and statement.startswith("replay")
    assert len(await queues.take(subscription)) == replayed
    assert not await queues.letters()
    await check_queues(owner)


async def test_purge_and_replay_of_everything_at_once(queues: Queues, owner: asyncpg.Connection) -> None:
    """Each letter is replayed or purged."""
    subscription = await queues.subscribe("q", ordering="none", max_in_flight=5000)
    await queues.publish("q", *range(1000))
    await queues.publish("q", *range(1000))
    await queues.bury(subscription, 1000)
    await queues.bury(subscription, 1000)
    work = [queues.dead_letters.replay_all(ALL_LETTERS) for _ in range(3)]
    (replayed, purged) = await asyncio.gather(
        asyncio.gather(*work), asyncio.gather(*(queues.dead_letters.purge(ALL_LETTERS) for _ in range(3)))
    )
    given_back = sum(count for count, _ in replayed)
    assert given_back + sum(purged) + await queues.dead_letters.purge(ALL_LETTERS) == 2000
    assert len(await queues.take_all(subscription)) == given_back
    await nothing_left(owner)
