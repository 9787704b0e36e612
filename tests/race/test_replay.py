"""Dead letters that several give back, delete or purge at once: each is given back once, to the subscription
that failed it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import Any

import asyncpg
import pytest

from subscriptions.domain.delivery import DeadLetterFilter, Reason, Subscription
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


async def test_eight_replays_of_one(queues: Queues, owner: asyncpg.Connection) -> None:
    subscription, letter = await one_dead(queues)
    answers = await asyncio.gather(
        *(outcome(queues.dead_letters.replay("default", letter)) for _ in range(AT_ONCE))
    )
    assert Counter(answers) == {("q", 1): 1, gone(letter): AT_ONCE - 1}
    await queues.ack(subscription, *await queues.take(subscription))
    await nothing_left(owner)


@pytest.mark.parametrize("ordering", ["key", "none"])
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


async def test_a_replay_reaches_the_one_that_failed(queues: Queues, owner: asyncpg.Connection) -> None:
    made = [await queues.subscribe(name, "in") for name in ("a", "b", "c")]
    await queues.publish("in", 1)
    await queues.ack(made[0], *await queues.take(made[0]))
    (letter,) = await queues.bury(made[1])
    (held,) = await queues.take(made[2])
    assert await queues.dead_letters.replay("default", letter) == ("b", 1)
    assert [len(await queues.take(s)) for s in made] == [0, 1, 0]
    assert await queues.ack(made[2], held) == ["acked"]
    await check_queues(owner)


async def test_filters_of_replay_and_purge(queues: Queues) -> None:
    a = await queues.subscribe("a", "x.*", ordering="none")
    b = await queues.subscribe("b", "x.1", ordering="none", max_deliver=1)
    for channel in ("x.1", "x.2"):
        await queues.publish(channel, 1)
    letters = await queues.bury(a, 2)
    (delivery,) = await queues.take(b)
    await queues.nack(b, delivery)

    async def replay(**which: Any) -> tuple[int, int]:
        return await queues.dead_letters.replay_all(DeadLetterFilter("default", **which))

    assert await replay(subscription="nobody") == (0, 0)
    assert await replay(ids=()) == (0, 0)
    assert await replay(ids=(letters[1], 10**12)) == (1, 0)
    assert await replay(reason=Reason.MAX_DELIVER, channel="x.2") == (0, 0)
    assert await replay(reason=Reason.MAX_DELIVER) == (1, 0)
    assert [letter.id for letter in await queues.letters()] == [letters[0]]
    assert await queues.dead_letters.purge(DeadLetterFilter("default", before_us=0)) == 0
    assert await queues.dead_letters.purge(DeadLetterFilter("default", channel="x.1")) == 1
    assert await queues.letters() == []


# --- some, and slowly


async def dead(queues: Queues, count: int, **settings: Any) -> Subscription:
    """A subscription that gave up on so many messages."""
    subscription = await queues.subscribe("q", **settings)
    await queues.publish("q", *range(count), key="k")
    for _ in range(count):
        await queues.bury(subscription)
    return subscription


async def test_a_replay_at_a_rate_is_due_bit_by_bit(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer comes at once; nobody has to be there for the rest, whose lifetime begins when it is due."""
    monkeypatch.setattr("db.dead_letters.REPLAY_BATCH", 2)
    subscription = await dead(queues, 6, ordering="none", message_ttl=30)
    assert await queues.dead_letters.replay_all(ALL_LETTERS, 5, 0.01) == (5, 0)
    due = await queues.owner.fetch(
        "select at, entered_at from gapless.deliveries where subscription_id > 0 order by message_id"
    )
    steps = [(row["at"] - due[0]["at"]).total_seconds() for row in due]
    assert [round(step) for step in steps] == [0, 100, 200, 300, 400]
    stats = await queues.stats("q")
    assert (stats.lag, stats.delayed, stats.dead_letters) == (5, 4, 1)
    for n in range(5):
        taken = await queues.take(subscription)
        assert (bodies(taken), attempts(taken)) == ([str(n)], [1])
        assert await queues.take(subscription) == []
        await queues.ack(subscription, *taken)
        await queues.pass_time(100)
        assert await queues.reap(subscription) == 0
    assert [letter.reason for letter in await queues.letters()] == ["rejected"]


async def test_what_is_not_due_yet_holds_up_its_key(queues: Queues, owner: asyncpg.Connection) -> None:
    subscription = await dead(queues, 3)
    await queues.publish("q", '"new"', key="k")
    await queues.dead_letters.replay_all(ALL_LETTERS, rate=0.01)
    assert bodies(await queues.take_all(subscription)) == ["0"]
    await queues.pass_time(100)
    assert bodies(await queues.take_all(subscription)) == ["1"]
    # With another order it still waits for its time.
    await queues.subscriptions.patch("default", "q", None, {"ordering": "channel"})
    assert bodies(await queues.take_all(subscription)) == []
    await queues.pass_time(100)
    assert bodies(await queues.take_all(subscription)) == ["2", '"new"']
    await nothing_left(owner)


@pytest.mark.parametrize(
    ("most", "wanted"), [(None, (3, 2)), (1, (1, 1)), (2, (2, 1)), (3, (3, 2)), (9, (3, 2))]
)
async def test_a_dry_run_says_what_a_replay_does(
    queues: Queues, most: int | None, wanted: tuple[int, int]
) -> None:
    """Entries of a subscription that is no more lie between, and after the last."""
    here = await queues.subscribe("here", "x", ordering="none")
    gone = await queues.subscribe("gone", "x", ordering="none")
    await queues.publish("x", *range(3))
    for n, subscription in enumerate((gone, here, here, gone, here)):
        assert await queues.bury(subscription) == [n + 1]
    await queues.subscriptions.delete("default", "gone")
    before = await queues.letters()
    counts = await queues.dead_letters.replayable(ALL_LETTERS, most)
    assert await queues.letters() == before
    assert counts == wanted
    assert await queues.dead_letters.replay_all(ALL_LETTERS, most) == counts
    assert len(await queues.take(here)) == counts[0]


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


async def test_a_replay_of_what_is_leased(queues: Queues, owner: asyncpg.Connection) -> None:
    """After a seek: the lease that is out counts as the first attempt, and has a first attempt's delay."""
    subscription, letter = await one_dead(queues, backoff=[100], max_deliver=2)
    await queues.subscriptions.seek("default", "q", "earliest")
    (delivery,) = await queues.take(subscription)
    await queues.dead_letters.replay("default", letter)
    await check_queues(owner)
    assert await queues.nack(subscription, delivery) == ["nacked"]
    assert await queues.take(subscription) == []
    await queues.pass_time(101)
    assert attempts(await queues.take(subscription)) == [2]
