"""What is in flight one at a time: of a key, of a channel, or nothing; whatever ends the one at work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import asyncpg
import pytest

from subscriptions.domain.delivery import Delivery, Subscription
from subscriptions.domain.model import NewMessage
from tests.conftest import Database
from tests.race.laws import check_queues
from tests.race.queues import ALL, CLAIM, Queues, attempts, bodies, receipts, step
from tests.race.support import blocked, sessions

LOOKAHEAD = 10_000


async def two_keys(queues: Queues) -> None:
    """a1 b1 a2 b2 a3 b3, and two without a key."""
    await queues.append(
        *[NewMessage("q", b'"%s%d"' % (key, n), key=key.decode()) for n in (1, 2, 3) for key in (b"a", b"b")],
        NewMessage("q", b'"-"'),
        NewMessage("q", b'"-"'),
    )


def said(deliveries: list[Delivery]) -> str:
    return " ".join(text.strip('"') for text in bodies(deliveries))


@pytest.mark.parametrize(
    ("ordering", "first", "second"),
    [("key", "a1 b1 - -", "a2 b2"), ("channel", "a1", "b1"), ("none", "a1 b1 a2 b2 a3 b3 - -", "")],
)
async def test_what_is_in_flight_one_at_a_time(
    queues: Queues, ordering: str, first: str, second: str
) -> None:
    subscription = await queues.subscribe("q", ordering=ordering)
    await two_keys(queues)
    taken = await queues.take(subscription)
    assert said(taken) == first
    stats = await queues.stats("q")
    assert (stats.in_flight, stats.lag) == (len(taken), 8 - len(taken))
    assert said(await queues.take(subscription)) == ""
    await queues.ack(subscription, *taken)
    assert said(await queues.take(subscription)) == second


async def test_channels_are_lanes_of_their_own(queues: Queues) -> None:
    for ordering, wanted in (("key", "1 1"), ("channel", "1 1"), ("none", "1 1 2 2")):
        await queues.subscribe(ordering, f"{ordering}.*", ordering=ordering)
        for text in (1, 2):
            for channel in ("x", "y"):
                await queues.publish(f"{ordering}.{channel}", text, key="k")
        subscription = await queues.subscriptions.get("default", ordering, stats=False)
        assert said(await queues.take(subscription)) == wanted


Ending = Callable[[Queues, Subscription, Delivery], Awaitable[object]]


async def _die(queues: Queues, subscription: Subscription, delivery: Delivery) -> None:
    await queues.nack(subscription, delivery, dead_letter=True)


async def _back(queues: Queues, subscription: Subscription, delivery: Delivery) -> None:
    await queues.nack(subscription, delivery, delay=0)


async def _later(queues: Queues, subscription: Subscription, delivery: Delivery) -> None:
    await queues.nack(subscription, delivery, delay=60)


async def _run_out(queues: Queues, subscription: Subscription, delivery: Delivery) -> None:
    await queues.end_in(delivery, -1_000_000)


async def _release(queues: Queues, subscription: Subscription, delivery: Delivery) -> None:
    await queues.deliveries.release(receipts(subscription, delivery), delivered=True)


async def _unsent(queues: Queues, subscription: Subscription, delivery: Delivery) -> None:
    await queues.deliveries.release(receipts(subscription, delivery), delivered=False)


@pytest.mark.parametrize(
    ("end", "then", "attempt"),
    [
        (_die, "a2", 1),
        (_back, "a1", 2),
        (_later, "", 0),
        (_run_out, "a1", 2),
        (_release, "a1", 2),
        (_unsent, "a1", 1),
    ],
)
@pytest.mark.parametrize("reaped", [False, True])
async def test_order_whatever_ends_the_first(
    queues: Queues, end: Ending, then: str, attempt: int, *, reaped: bool
) -> None:
    subscription = await queues.subscribe("q")
    await two_keys(queues)
    taken = await queues.take(subscription)
    await end(queues, subscription, taken[0])
    if reaped:
        await queues.reap(subscription)
    await check_queues(queues.owner)
    again = await queues.take(subscription)
    assert (said(again), attempts(again)) == (then, [attempt] if attempt else [])
    await queues.ack(subscription, taken[1])
    assert said(await queues.take(subscription)) == "b2", "others go on"


async def test_the_last_attempt_frees_the_lane(queues: Queues) -> None:
    subscription = await queues.subscribe("q", max_deliver=2, backoff=[])
    await two_keys(queues)
    seen: list[str] = []
    for _ in range(2):
        (first, *_) = await queues.take(subscription, 1)
        seen.append(f"{said([first])}:{first.attempt}")
        await queues.nack(subscription, first)
    seen += [f"{said([d])}:{d.attempt}" for d in await queues.take(subscription)]
    assert seen == ["a1:1", "a1:2", "b1:1", "a2:1", "-:1", "-:1"]
    (letter,) = await queues.letters()
    assert (letter.reason, letter.attempts, letter.last_error) == ("max_deliver", 2, "nacked")


async def test_a_dead_lane_does_not_wait_for_the_next_round(queues: Queues) -> None:
    """A hundred of one key, all expired while they waited: one claim gets past as many as it may, and says
    that there is more until there is none."""
    subscription = await queues.subscribe("q")
    await queues.publish("q", *range(100), key="a")
    await queues.publish("q", 100, key="a")
    (first,) = await queues.take(subscription)
    while (await queues.stats("q")).waiting < 100:
        await queues.claim(subscription)
    await queues.owner.execute(
        "update gapless.deliveries set expires_at = now() where state = 2 and message_id <= 100"
    )
    await queues.ack(subscription, first)
    rounds = 0
    while not (claimed := await queues.claim(subscription, 1)).deliveries:
        assert claimed.more, "what is due is not left lying"
        rounds += 1
    assert (bodies(list(claimed.deliveries)), rounds < 10) == (["100"], True)
    assert len(await queues.letters(reason="expired")) == 99


@pytest.mark.parametrize(
    ("before", "after"), [("none", "key"), ("key", "none"), ("key", "channel"), ("channel", "key")]
)
async def test_the_ordering_changes_under_way(queues: Queues, before: str, after: str) -> None:
    subscription = await queues.subscribe("q", ordering=before, backoff=[])
    await two_keys(queues)
    out = await queues.take(subscription, 4)
    await queues.nack(subscription, out[0])
    await queues.subscriptions.patch("default", "q", None, {"ordering": after})
    if after == "key":
        held = {d.message.key for d in out[1:]} - {None}
        given = await queues.take(subscription)
        assert not held & {d.message.key for d in given}
        if before == "channel":
            await check_queues(queues.owner)
        out += given
    done = await _drain(queues, subscription, out[1:])
    assert sorted(said(done).split()) == ["-", "-", "a1", "a2", "a3", "b1", "b2", "b3"]


async def _drain(queues: Queues, subscription: Subscription, out: list[Delivery]) -> list[Delivery]:
    done: list[Delivery] = []
    while out:
        assert await queues.ack(subscription, *out) == ["acked"] * len(out)
        done += out
        out = await queues.take(subscription)
    return done


async def test_a_claim_follows_one_ordering(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    """A change that commits while the claim waits is followed; one that commits after it is not."""
    subscription = await queues.subscribe("q", ordering="none")
    await two_keys(queues)
    async with sessions(database.service_url, 1) as (session,):
        first = await step(session, CLAIM, subscription.id, ALL, 1)
        second = await blocked(owner, queues.take(subscription))
        await queues.subscriptions.patch("default", "q", None, {"ordering": "channel"})
        await first.end()
        assert said(await second) == "", "its channel is at work"
    assert len(first.rows) == 2


async def test_the_look_ahead_has_an_end(queues: Queues) -> None:
    """A hot key in front of everything: at most ten thousand of it wait as rows, and who claims meanwhile is
    told that there is nothing to be had, not to ask again at once."""
    subscription = await queues.subscribe("q")
    for _ in range(12):
        await queues.publish("q", *range(1000), key="hot")
    await queues.publish("q", '"cold"', key="cold")
    (hot,) = await queues.take(subscription, 1)
    rounds = 0
    while (claimed := await queues.claim(subscription)).more:
        assert not claimed.deliveries
        rounds += 1
        assert rounds < 50, "asked again and again for nothing"
    stats = await queues.stats("q")
    assert (stats.waiting, stats.in_flight, stats.lag) == (LOOKAHEAD, 1, 12_000)
    await queues.ack(subscription, hot)
    (hot,) = await queues.take(subscription)
    assert hot.message.seq == 2
    assert (await queues.stats("q")).waiting == LOOKAHEAD
    await queues.owner.execute("update gapless.deliveries set state = 1 where state = 2")
    await queues.subscriptions.patch("default", "q", None, {"max_backlog": 1})
    await queues.reap(subscription)
    assert said(await queues.take(subscription)) == "cold", "who waits behind it gets through"


async def test_what_is_replayed_between_two_changes_of_ordering_keeps_its_lane(queues: Queues) -> None:
    """Nobody claims between the changes, so no claim sees that there were any."""
    subscription = await queues.subscribe("q")
    await queues.publish("q", 1, 2, key="k")
    letters = await queues.bury(subscription) + await queues.bury(subscription)
    await queues.subscriptions.patch("default", "q", None, {"ordering": "none"})
    for letter in letters:
        await queues.dead_letters.replay("default", letter)
    await queues.subscriptions.patch("default", "q", None, {"ordering": "key"})
    assert bodies(await queues.take(subscription)) == ["1"]


async def test_a_delay_outlasts_a_change_of_ordering(queues: Queues) -> None:
    """It waits in a lane that it did not have when it was given back: a free lane does not make it due."""
    subscription = await queues.subscribe("q", ordering="none", ack_wait=3000)
    await queues.publish("q", 1, 2, 3)
    first, second = await queues.take(subscription, 2)
    await queues.nack(subscription, second, delay=1000)
    await queues.subscriptions.patch("default", "q", None, {"ordering": "channel"})
    assert await queues.take(subscription) == []
    await queues.ack(subscription, first)
    assert await queues.take(subscription) == []
    await queues.pass_time(1001)
    assert bodies(await queues.take(subscription)) == ["2"]
