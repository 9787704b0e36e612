"""Who gets what, when several ask: each message goes to one, in the order of its lane, from where the
subscription starts."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from subscriptions.domain.errors import GaplessError
from subscriptions.domain.model import EPOCH, NewMessage
from tests.conftest import Database
from tests.race.laws import nothing_left
from tests.race.queues import ALL, CLAIM, Queues, attempts, bodies, step
from tests.race.support import IMMEDIATE, blocked, opened_segments, publish, sessions


@pytest.mark.parametrize("commits", [True, False])
async def test_the_second_claim_waits_for_the_first(
    database: Database, queues: Queues, owner: asyncpg.Connection, commits: bool
) -> None:
    subscription = await queues.subscribe("q")
    await queues.publish("q", 1, 2, 3)
    async with sessions(database.service_url, 1) as (session,):
        first = await step(session, CLAIM, subscription.id, ALL, 2)
        second = await blocked(owner, queues.take(subscription, 2))
        await first.end(commits=commits)
        assert bodies(await second) == (["3"] if commits else ["1", "2"])
        assert len(first.rows) == 3


async def test_a_claim_opens_no_segment_before_what_it_hands_out(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    for _ in range(3):
        await queues.publish("q", 0)
        while not await queues.maintenance.roll_segment(0):
            await asyncio.sleep(0.01)
    rows = await owner.fetch("select tableoid::regclass::text as segment from gapless.messages")
    old = {row["segment"] for row in rows}
    subscription = await queues.subscribe("q", start="now", max_deliver=0, backoff=[])
    (id_,) = await queues.publish("q", 1)
    async with sessions(database.service_url, 1) as (session,):
        # It is handed out, then again and again. Postgres keeps a plan only after it has made several.
        for _ in range(8):
            claim = await step(session, CLAIM, subscription.id, ALL, 2)
            assert id_ in [row["id"] for row in claim.rows]
            opened = await opened_segments(session)
            await claim.end()
            await owner.execute("update gapless.deliveries set state = 1, at = 'epoch'")
            await owner.execute("update gapless.progress set leased = 0")
    assert opened
    assert not opened & old


async def test_a_crowd_gets_each_message_once(queues: Queues, owner: asyncpg.Connection) -> None:
    subscription = await queues.subscribe("q", ordering="none")
    ids = await queues.publish("q", *range(500))

    async def work() -> list[int]:
        done: list[int] = []
        while taken := await queues.take(subscription, 7):
            done += [delivery.message.id for delivery in taken]
            assert await queues.ack(subscription, *taken) == ["acked"] * len(taken)
        return done

    parts = await asyncio.gather(*(work() for _ in range(8)))
    assert sorted(id_ for part in parts for id_ in part) == ids
    assert (await queues.stats("q")).acked == 500
    await nothing_left(owner)


async def test_keys_in_a_crowd_keep_their_order(queues: Queues, owner: asyncpg.Connection) -> None:
    """Workers that ack, nack and lose messages: of each key the order is kept, and one is out at a time."""
    subscription = await queues.subscribe("q", max_deliver=0, backoff=[])
    for number in range(40):
        await queues.append(*[NewMessage("q", b"%d" % number, key=f"k{key}") for key in range(5)])
    out: set[str] = set()
    done: dict[str, list[int]] = {f"k{key}": [] for key in range(5)}

    async def work(turn: int) -> None:
        while sum(map(len, done.values())) < 200:
            taken = await queues.take(subscription, 3)
            for delivery in taken:
                key = delivery.message.key
                assert key is not None
                assert key not in out
                out.add(key)
                await asyncio.sleep(0)
                out.remove(key)
                turn += 1
                if turn % 3:
                    done[key].append(int(delivery.message.data or b""))
                    await queues.ack(subscription, delivery)
                else:
                    await queues.nack(subscription, delivery)

    await asyncio.gather(*(work(number) for number in range(4)))
    assert done == {f"k{key}": list(range(40)) for key in range(5)}
    await nothing_left(owner)


async def test_max_in_flight_holds_whoever_asks(queues: Queues) -> None:
    subscription = await queues.subscribe("q", ordering="none", max_in_flight=5)
    await queues.publish("q", *range(20))
    many = await asyncio.gather(*(queues.take(subscription, 4) for _ in range(6)))
    taken = [delivery for part in many for delivery in part]
    assert len(taken) == 5
    assert (await queues.stats("q")).in_flight == 5
    await queues.ack(subscription, *taken[:2])
    assert len(await queues.take(subscription, 10)) == 2
    await queues.subscriptions.patch("default", "q", None, {"max_in_flight": 3})
    await queues.ack(subscription, *taken[2:])
    claimed = await queues.claim(subscription)
    assert len(claimed.deliveries) == 1, "three, with the two that are out"
    assert not (await queues.claim(subscription)).more, "nothing is to be had before something is settled"


# --- where it starts


@pytest.mark.parametrize("start", ["earliest", "latest", "id", "time"])
async def test_a_start_is_exact(queues: Queues, start: str) -> None:
    before = await queues.publish("q", 1, 2)
    await queues.pass_time(1)
    between = datetime.now(UTC) - timedelta(seconds=0.5)
    await queues.publish("q", 3)
    given = {"id": str(before[0]), "time": between.isoformat().replace("+00:00", "Z")}.get(start, start)
    subscription = await queues.subscribe("q", start=given)
    await queues.publish("q", 4)
    wanted = {"earliest": "1234", "latest": "4", "id": "234", "time": "34"}[start]
    assert (await queues.stats("q")).lag == len(wanted)
    assert "".join(bodies(await queues.take_all(subscription))) == wanted
    assert (await queues.stats("q")).lag == 0


async def test_a_time_is_exact_to_the_microsecond(queues: Queues) -> None:
    """Ids only roughly follow time: what was created right then counts, what came right before does not."""
    await queues.publish("q", *range(4))
    created = await queues.owner.fetchval(
        "update gapless.messages set created_at = created_at + id * interval '1 microsecond'"
        " returning created_at"
    )
    exact = created.astimezone(UTC).isoformat().replace("+00:00", "Z")
    subscription = await queues.subscribe("q", start=exact)
    assert bodies(await queues.take_all(subscription)) == ["0", "1", "2", "3"]
    later = (created + timedelta(microseconds=2)).astimezone(UTC).isoformat().replace("+00:00", "Z")
    moved = await queues.subscriptions.seek("default", "q", later)
    assert moved.stats is not None
    assert moved.stats.lag == 2
    assert bodies(await queues.take_all(subscription)) == ["2", "3"]


async def test_a_start_in_the_future_is_refused(queues: Queues) -> None:
    await queues.publish("q", 1)
    with pytest.raises(GaplessError, match="future"):
        await queues.subscribe("q", start="2")
    await queues.subscribe("q", start="1")


@pytest.mark.parametrize("channels", [("a",), ("a", "b"), ("*",)], ids=["one", "a set", "a pattern"])
@pytest.mark.parametrize("seek", [False, True], ids=["made", "moved"])
@pytest.mark.parametrize("to", ["latest", "an id"])
@pytest.mark.parametrize("settled", [None, ALL], ids=["unknown", "of another history"])
async def test_a_start_gives_whatever_is_committed_from_then_on(
    database: Database,
    queues: Queues,
    channels: tuple[str, ...],
    seek: bool,
    to: str,
    settled: int | None,
) -> None:
    """A publisher under way has taken a smaller id, and others have committed larger ones. What the caller
    takes for settled may be an id of the history before, that is not given out here yet."""
    queues.subscriptions._settled = lambda: settled
    await queues.publish("a", 0)
    if seek:
        subscription = await queues.subscribe("q", *channels, start="earliest")
    async with sessions(database.owner_url, 1) as (slow,):
        transaction = slow.transaction()
        await transaction.start()
        await publish(slow, "a", "1")
        await slow.execute(IMMEDIATE)
        (last,) = await queues.publish("b", 2)
        start = str(last) if to == "an id" else to
        if seek:
            await queues.subscriptions.seek("default", "q", start)
        else:
            subscription = await queues.subscribe("q", *channels, start=start)
        await transaction.commit()
        await queues.publish("a", 3)
    assert bodies(await queues.take_all(subscription)) == ["1", "3"]


# --- what it reads


async def test_channels_that_appear_later_are_followed(queues: Queues) -> None:
    subscription = await queues.subscribe("q", "orders.*", "plain", "deep.>", start="latest")
    for channel in ("orders.eu", "orders.eu.de", "plain", "deep.a.b.c", "deep", "plain.not"):
        await queues.publish(channel, f'"{channel}"')
    assert bodies(await queues.take_all(subscription)) == ['"orders.eu"', '"plain"', '"deep.a.b.c"']
    await queues.subscriptions.patch("default", "q", ("orders.>",), {})
    await queues.publish("orders.eu.de", 1)
    await queues.publish("plain", 2)
    assert bodies(await queues.take_all(subscription)) == ["1"]


@pytest.mark.parametrize(
    ("channels", "first", "second"),
    [(("a", "b"), ["1"], ["2", "3"]), (("*",), ["1"], ["2", "3"]), (("a",), ["1", "3"], [])],
)
async def test_several_channels_are_read_up_to_the_watermark(
    database: Database, queues: Queues, channels: tuple[str, ...], first: list[str], second: list[str]
) -> None:
    """Above it an earlier message could still appear; of one channel the order is its own."""
    subscription = await queues.subscribe("q", *channels)
    await queues.publish("a", 1)
    assert await queues.settled() == 1
    async with sessions(database.owner_url, 1) as (slow,):
        transaction = slow.transaction()
        await transaction.start()
        await publish(slow, "b", "2")
        await slow.execute(IMMEDIATE)
        await queues.publish("a", 3)
        assert bodies(await queues.take(subscription)) == first
        await transaction.commit()
    assert bodies(await queues.take(subscription)) == second


async def test_a_subscription_that_grows_is_not_read_beyond_the_watermark(queues: Queues) -> None:
    """Whoever claimed one channel, in its own order, may not know yet that there are several now."""
    subscription = await queues.subscribe("q", "a")
    await queues.subscriptions.patch("default", "q", ("a", "b"), {})
    assert await queues.claim(subscription, settled=ALL)
    assert await queues.deliveries.reap(subscription.id, ALL, 100) == (0, ())
    await queues.publish("b", 1)
    assert not (await queues.claim(subscription, settled=ALL)).deliveries
    assert bodies(await queues.take(subscription)) == ["1"]


async def test_filters_pass_over_in_silence(queues: Queues, owner: asyncpg.Connection) -> None:
    subscription = await queues.subscribe("q", filter={"types": ["order"], "keys": ["a", "b"]})
    for number, (kind, key) in enumerate(
        [("order", "a"), ("order", "c"), ("x", "a"), ("order", None), ("order", "b")]
    ):
        await queues.publish("q", number, key=key, type=kind)
    stats = await queues.stats("q")
    assert (stats.lag, stats.cursor) == (2, 0)
    assert bodies(await queues.take_all(subscription)) == ["0", "4"]
    await nothing_left(owner)


async def test_a_filter_that_lets_nothing_through_gets_on(queues: Queues) -> None:
    """Each claim does a bounded piece of work and says that there is more."""
    subscription = await queues.subscribe("q", filter={"types": ["rare"]})
    for _ in range(50):
        await queues.publish("q", *range(1000))
    (rare,) = await queues.publish("q", 1, type="rare")
    rounds = 0
    while not (taken := await queues.claim(subscription, 1)).deliveries:
        rounds += 1
        assert taken.more
        assert rounds < 20
    assert taken.deliveries[0].message.id == rare


async def test_what_was_sent_is_what_comes(queues: Queues) -> None:
    binary = bytes(range(256)) * 4096
    large = b'"%s"' % (b"x" * 1_000_000)
    sent = [
        NewMessage("q", None, binary, type="bin", key="k", headers=b'{"a":"\\u00e9"}', sender="s"),
        NewMessage("q", large, ttl=60),
        NewMessage("q", b'{"b":1,"a":[1.0,2e3],"c":"\\ud83d\\ude00"}'),
    ]
    ids = await queues.append(*sent)
    subscription = await queues.subscribe("q")
    taken = await queues.take(subscription)
    assert [d.message.id for d in taken] == ids
    for new, delivery in zip(sent, taken, strict=True):
        message = delivery.message
        assert message[5:8] == (new.data, new.binary, new.headers)
        assert (message.type, message.key, message.sender) == (new.type, new.key, new.sender)
        assert (message.expires_at_us is None) is (new.ttl is None)
    now = (datetime.now(UTC) - EPOCH) / timedelta(microseconds=1)
    assert all(25e6 < delivery.deadline_us - now < 30e6 for delivery in taken)
    assert Counter(attempts(taken)) == {1: 3}
    assert len({delivery.lease for delivery in taken}) == 1


async def test_only_what_came_before_counts_as_redelivered(queues: Queues) -> None:
    """Who waited for its lane comes for the first time."""
    subscription = await queues.subscribe("q", backoff=[])
    await queues.publish("q", 1, 2, key="k")
    taken = await queues.take(subscription)
    await queues.ack(subscription, *taken)
    taken = await queues.take(subscription)
    assert (await queues.stats("q")).redelivered == 0
    await queues.nack(subscription, *taken)
    await queues.take(subscription)
    assert (await queues.stats("q")).redelivered == 1


async def test_who_takes_all_there_was_room_for_may_ask_again(queues: Queues) -> None:
    subscription = await queues.subscribe("q", ordering="none", backoff=[])
    await queues.publish("q", *range(4))
    assert (await queues.claim(subscription, 2)).more
    rest = await queues.claim(subscription, 3)
    assert (len(rest.deliveries), rest.more) == (2, False)
    await queues.nack(subscription, *rest.deliveries)
    assert (await queues.claim(subscription, 1)).more
    assert not (await queues.claim(subscription, 2)).more
