"""What time and size decide without anybody asking: messages that expire wherever they are, long backlogs."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import asyncpg
import pytest

from subscriptions.domain.delivery import DeadLetterFilter, Definition, Subscription
from subscriptions.domain.model import NewMessage
from tests.conftest import Database
from tests.race.laws import ledger, nothing_left
from tests.race.queues import ALL, CLAIM, Queues, bodies, receipts, step
from tests.race.support import IMMEDIATE, sessions

MIB = 1024 * 1024


async def reasons(queues: Queues) -> Counter[str]:
    return Counter(letter.reason.value for letter in await queues.letters())


# --- expiry


@pytest.mark.parametrize("whose", ["message", "channel", "subscription"])
@pytest.mark.parametrize("how", ["reap", "claim"])
async def test_whose_ever_ttl_it_is(queues: Queues, owner: asyncpg.Connection, whose: str, how: str) -> None:
    settings: dict[str, Any] = {"message_ttl": 1000} if whose == "subscription" else {}
    subscription = await queues.subscribe("q", **settings)
    if whose == "channel":
        await owner.execute("""select gapless.set_channel(1, 'q', '{"message_ttl": 1000}', false)""")
    await queues.publish("q", 1, key="k", ttl=1000 if whose == "message" else 10_000)
    await queues.pass_time(500)
    assert await queues.reap(subscription) == 0
    await queues.pass_time(501)
    assert (await queues.reap(subscription) if how == "reap" else len(await queues.take(subscription))) == (
        how == "reap"
    )
    (letter,) = await queues.letters()
    assert (letter.reason, letter.attempts, letter.message.key) == ("expired", 0, "k")
    stats = await queues.stats("q")
    assert (stats.lag, stats.dead_lettered, stats.oldest_unacked_seconds) == (0, 1, None)


async def test_expiry_behind_one_that_does_not(queues: Queues) -> None:
    """Nobody consumes: what expires behind a message that stays is found, and found once."""
    subscription = await queues.subscribe("q", "a", "b")
    await queues.publish("a", 1, 2, 3)
    await queues.publish("b", 4, ttl=10)
    await queues.publish("a", 5, ttl=1000)
    await queues.publish("other", 6, ttl=10)
    await queues.pass_time(11)
    assert await queues.deliveries.due(["default"]) == [subscription.id]
    assert await queues.reap(subscription) == 1
    assert await queues.reap(subscription) == 0
    stats = await queues.stats("q")
    assert (stats.lag, stats.cursor) == (4, 0)
    assert bodies(await queues.take_all(subscription)) == ["1", "2", "3", "5"]
    assert await reasons(queues) == {"expired": 1}
    assert (await ledger(queues.owner, subscription))["ahead"] == 0


@pytest.mark.parametrize("pattern", ["q.a", "q.*"])
async def test_only_what_may_have_expired_is_looked_at(queues: Queues, pattern: str) -> None:
    """A round costs little, however many subscriptions have a time to live."""
    subscription = await queues.subscribe("q", pattern, message_ttl=100, max_deliver=0)
    assert await queues.deliveries.due(["default"]) == [subscription.id], "it is new"
    await queues.reap(subscription)
    assert await queues.deliveries.due(["default"]) == []
    await queues.publish("q.a", 1, 2)
    await queues.reap(subscription)
    assert await queues.deliveries.due(["default"]) == []
    await queues.pass_time(101)
    assert await queues.deliveries.due(["default"]) == [subscription.id]
    assert await queues.reap(subscription) == 2
    assert await queues.deliveries.due(["default"]) == []
    await queues.publish("q.a", 3)
    await queues.nack(subscription, *await queues.take(subscription), delay=1000)
    assert await queues.deliveries.due(["default"]) == []
    await queues.pass_time(101)
    assert await queues.deliveries.due(["default"]) == [subscription.id]
    assert await queues.reap(subscription) == 1
    await queues.publish("other", 4)
    await queues.pass_time(101)
    assert (await queues.deliveries.due(["default"]) == []) == (pattern == "q.a")
    await queues.reap(subscription)
    assert await queues.deliveries.due(["default"]) == []


async def test_everything_that_waits_expires_too(queues: Queues) -> None:
    """Delayed, waiting for its key, given back; what is leased does not until its lease ends."""
    subscription = await queues.subscribe("q", max_deliver=0)
    await queues.append(*[NewMessage("q", b"%d" % n, key=f"{n % 2}", ttl=500) for n in range(6)])
    leased, delayed = await queues.take(subscription)
    await queues.nack(subscription, delayed, delay=1000)
    await queues.deliveries.extend(receipts(subscription, leased), 1000)
    await queues.pass_time(501)
    assert await queues.reap(subscription) == 5
    assert await queues.ack(subscription, leased) == ["acked"]
    assert await reasons(queues) == {"expired": 5}
    assert (await queues.stats("q")).lag == 0


async def test_a_lease_ends_and_its_message_has_expired(queues: Queues) -> None:
    subscription = await queues.subscribe("q", ack_wait=5)
    await queues.publish("q", 1, ttl=500)
    await queues.take(subscription)
    await queues.pass_time(501)
    assert await queues.take(subscription) == []
    (letter,) = await queues.letters()
    assert (letter.reason, letter.attempts, letter.last_error) == (
        "expired",
        1,
        "the lease ended without an ack",
    )


async def test_a_message_that_a_slow_publisher_stamped_is_found(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    """It expired before anybody could see it, and others that came later were looked at meanwhile."""
    subscription = await queues.subscribe("q", "a", "b")
    await queues.publish("b", 1)
    async with sessions(database.owner_url, 1) as (slow,):
        transaction = slow.transaction()
        await transaction.start()
        await slow.execute("select gapless.publish('a', '2', ttl => 0.001)")
        await slow.execute(IMMEDIATE)
        await queues.publish("b", 3, ttl=0.001)
        await queues.owner.execute("select pg_sleep(0.01)")
        while not (await queues.deliveries.reap(subscription.id, await queues.settled(), 10))[0]:
            pass
        await queues.deliveries.reap(subscription.id, await queues.settled(), 10)
        await transaction.commit()
    assert await queues.reap(subscription) == 1
    assert sorted(letter.message.data or b"" for letter in await queues.letters()) == [b"2", b"3"]
    assert bodies(await queues.take_all(subscription)) == ["1"]


@pytest.mark.parametrize("change", ["channels", "filter"])
async def test_a_subscription_that_grows_finds_what_expired_before(queues: Queues, change: str) -> None:
    """Nobody consumes: what matches only now was passed over when it expired."""
    settings: dict[str, Any] = {"filter": {"types": ["a"]}} if change == "filter" else {}
    subscription = await queues.subscribe("q", "a.*", **settings)
    await queues.publish("a.x", 1, type="a")
    await queues.publish("a.x" if change == "filter" else "b", 2, type="b", ttl=10)
    await queues.pass_time(60)
    assert await queues.reap(subscription) == 0
    await queues.pass_time(60)
    if change == "filter":
        await queues.subscriptions.patch("default", "q", None, {"filter": None})
    else:
        await queues.subscriptions.patch("default", "q", ("a.*", "b"), {})
    assert await queues.reap(subscription) == 1
    assert await reasons(queues) == {"expired": 1}


async def test_expiry_and_a_claim(database: Database, queues: Queues, owner: asyncpg.Connection) -> None:
    subscription = await queues.subscribe("q", message_ttl=10)
    await queues.publish("q", 1)
    await queues.pass_time(11)
    async with sessions(database.service_url, 1) as (session,):
        first = await step(session, CLAIM, subscription.id, ALL, 1)
        assert await queues.deliveries.reap(subscription.id, ALL, 10) == (0, ())
        await first.end()
        assert await queues.reap(subscription) == 0
    assert await reasons(queues) == {"expired": 1}


async def test_many_expire_in_pieces(queues: Queues) -> None:
    subscription = await queues.subscribe("q", message_ttl=10, ordering="none")
    for _ in range(3):
        await queues.publish("q", *range(1000))
    await queues.publish("q", '"last"', ttl=9)
    await queues.pass_time(11)
    done = [await queues.deliveries.reap(subscription.id, ALL, 700) for _ in range(5)]
    assert [count for count, _ in done] == [700, 700, 700, 700, 201]
    assert (await queues.stats("q")).dead_letters == 3001
    assert (await ledger(queues.owner, subscription))["ahead"] == 0


@pytest.mark.parametrize("channel", [None, "dead"])
async def test_large_messages_die_a_few_at_a_time(queues: Queues, channel: str | None) -> None:
    """No transaction holds more than some: whoever decides does so in several."""
    dead_letter: dict[str, Any] = {"dead_letter": {"channel": channel}} if channel else {}
    subscription = await queues.subscribe("q", max_deliver=1, ordering="none", **dead_letter)
    for _ in range(5):
        await queues.append(*[NewMessage("q", b'"%s"' % (b"x" * MIB))] * 8)
    taken = []
    while more := await queues.take(subscription, 40):
        assert sum(len(d.message.data or b"") for d in more) <= 9 * MIB
        taken += more
    assert len(taken) == 40
    assert await queues.nack(subscription, *taken) == ["nacked"] * 40
    assert (await queues.stats("q")).dead_letters == 40
    largest = await queues.owner.fetchval(
        "select max(n) from (select count(*) as n from gapless.dead_letters group by created_at) x"
    )
    assert largest <= 32


# --- backlog


async def test_a_backlog_loses_its_oldest(queues: Queues) -> None:
    subscription = await queues.subscribe("q", max_backlog=5, ordering="none")
    await queues.publish("q", *range(20))
    held = await queues.take(subscription, 3)
    assert await queues.reap(subscription) == 12
    assert bodies(await queues.take_all(subscription)) == ["15", "16", "17", "18", "19"]
    assert await queues.ack(subscription, *held) == ["acked"] * 3
    assert await reasons(queues) == {"max_backlog": 12}
    assert (await ledger(queues.owner, subscription))["ahead"] == 0


async def test_of_a_backlog_rows_go_first(queues: Queues, owner: asyncpg.Connection) -> None:
    subscription = await queues.subscribe("q", max_backlog=3)
    await queues.publish("q", *range(10), key="k")
    (held,) = await queues.take(subscription)
    await queues.nack(subscription, held, delay=1000)
    assert (await queues.stats("q")).waiting > 0
    assert await queues.reap(subscription) == 7
    assert [letter.message.data for letter in await queues.letters()] == [b"%d" % n for n in range(7)]
    assert bodies(await queues.take_all(subscription)) == ["7", "8", "9"]
    await queues.dead_letters.replay_all(DeadLetterFilter("default"))
    assert await queues.reap(subscription) == 4


async def test_a_filtered_backlog(queues: Queues) -> None:
    subscription = await queues.subscribe("q", "a", "b", max_backlog=2, filter={"types": ["x"]})
    for number in range(10):
        await queues.publish("ab"[number % 2], number, type="xy"[number % 3 == 0])
    assert await queues.reap(subscription) == 4
    assert bodies(await queues.take_all(subscription)) == ["7", "8"]


async def test_publish_and_reap_at_once(queues: Queues, owner: asyncpg.Connection) -> None:
    """Under a flood: never more than asked for are given up, and nothing is counted twice."""
    subscription = await queues.subscribe("q", "a", "b", max_backlog=50, ordering="none")
    published = 0

    async def flood() -> None:
        nonlocal published
        for turn in range(40):
            published += len(await queues.publish("ab"[turn % 2], *range(10)))

    async def reap() -> None:
        while published < 400:
            await queues.deliveries.reap(subscription.id, await queues.settled(), 100)

    async def work() -> int:
        acked = 0
        while published < 400:
            taken = await queues.take(subscription, 3)
            acked += (await queues.ack(subscription, *taken)).count("acked") if taken else 0
        return acked

    _, _, _, *acked = await asyncio.gather(flood(), reap(), reap(), work(), work())
    await queues.reap(subscription)
    stats = await queues.stats("q")
    assert stats.lag <= 50
    assert stats.acked == sum(acked)
    assert stats.acked + stats.dead_lettered + stats.lag == 400
    await queues.take_all(subscription)
    await queues.dead_letters.purge(DeadLetterFilter("default"))
    await nothing_left(owner)


# --- what the look for expired messages rests on


async def test_a_clock_that_was_set_back(queues: Queues, owner: asyncpg.Connection) -> None:
    """The last look was at a time that has yet to come."""
    subscription = await queues.subscribe("q")
    await queues.reap(subscription)
    await queues.publish("q", 1, ttl=10)
    await queues.pass_time(20)
    await owner.execute("update gapless.progress set expired_to = now() + interval '2 hours'")
    assert await queues.deliveries.due(["default"]) == [subscription.id]
    assert await queues.reap(subscription) == 1


async def test_another_service_that_never_looks(queues: Queues) -> None:
    """Its namespaces are its own: what is looked at here does not wait for it."""
    subscription = await queues.subscribe("q")
    await queues.namespaces.ensure("other")
    await queues.subscriptions.put("other", Definition("q", ("q",), "earliest"))
    await queues.publish("q", 1, ttl=10)
    await queues.pass_time(30)
    assert await queues.reap(subscription) == 1
    assert await queues.deliveries.due(["default"]) == []


MESSAGES_READ = (
    "select coalesce(sum(seq_tup_read + idx_tup_fetch), 0) from pg_stat_xact_user_tables"
    " where schemaname = 'gapless' and relname like 'messages%'"
)


async def behind_one_that_stays(queues: Queues, count: int, **settings: Any) -> Subscription:
    """The first message never expires, so the frontier stays before it; so many after it have expired."""
    subscription = await queues.subscribe("q", **settings)
    await queues.publish("q", 0)
    for start in range(0, count, 1000):
        await queues.publish("q", *range(start + 1, min(start + 1000, count) + 1), ttl=10)
    await queues.pass_time(60)
    return subscription


async def test_a_look_goes_on_where_the_last_one_stopped(queues: Queues, owner: asyncpg.Connection) -> None:
    """It does not read again what it has settled: or the time it takes would grow with the square."""
    subscription = await behind_one_that_stays(queues, 4000)
    for _ in range(3):
        assert await queues.deliveries.reap(subscription.id, await queues.settled(), 1000) == (1000, ())
    # What is so small would rather be read whole and sorted.
    await owner.execute("begin; set local enable_seqscan = off; set local enable_sort = off")
    row = await owner.fetchrow("select * from gapless.reap($1, $2, 100)", subscription.id, ALL)
    assert row is not None
    assert row["done"] == 100
    assert await owner.fetchval(MESSAGES_READ) < 2000
    await owner.execute("rollback")
    assert await queues.reap(subscription, 100) == 1000
    assert await queues.deliveries.due(["default"]) == []
    assert bodies(await queues.take_all(subscription)) == ["0"]
    assert (await ledger(owner, subscription))["dead_lettered"] == 4000


@pytest.mark.parametrize("change", ["filter", "channels", "seek", "clock"])
async def test_what_changes_during_a_look(queues: Queues, owner: asyncpg.Connection, change: str) -> None:
    """It begins anew: what did not matter before may matter now."""
    subscription = await behind_one_that_stays(queues, 20, filter={"types": ["message"]})
    await queues.append(*[NewMessage("other", b"1", ttl=10), NewMessage("q", b"1", type="t", ttl=10)])
    await queues.pass_time(60)
    assert await queues.deliveries.reap(subscription.id, await queues.settled(), 4) == (4, ())
    expected = 16
    if change == "filter":
        await queues.subscriptions.patch("default", "q", None, {"filter": None})
        expected = 17
    elif change == "channels":
        await queues.subscriptions.patch("default", "q", ("q", "other"), {})
        expected = 17
    elif change == "seek":
        await queues.subscriptions.seek("default", "q", "earliest")
        expected = 20
    else:
        await owner.execute("update gapless.progress set look_to = look_to + interval '2 hours'")
    assert await queues.deliveries.due(["default"]) == [subscription.id]
    assert await queues.reap(subscription, 3) == expected


async def test_a_look_past_what_others_have_expired(queues: Queues) -> None:
    """One call reads so much and no more; the next goes on."""
    subscription = await queues.subscribe("q")
    await queues.publish("q", 0)
    for start in range(0, 30_000, 1000):
        await queues.publish("other", *range(start, start + 1000), ttl=10)
    await queues.publish("q", 1, ttl=10)
    await queues.pass_time(60)
    done = 0
    while await queues.deliveries.due(["default"]):
        done += await queues.reap(subscription, 1)
    assert done == 1
    assert bodies(await queues.take_all(subscription)) == ["0"]


async def test_what_no_filter_lets_through_is_passed(queues: Queues) -> None:
    """Or a backlog would be counted over all of it again and again."""
    subscription = await queues.subscribe("q", filter={"types": ["t"]}, max_backlog=1)
    await queues.publish("q", *range(100))
    assert await queues.reap(subscription) == 0
    assert (await queues.stats("q")).cursor == 100
