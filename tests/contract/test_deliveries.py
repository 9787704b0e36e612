"""Claims, settlements and what time decides, whatever stands behind the ports."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.embedded import EmbeddedPostgres
from subscriptions.domain.delivery import Nack, Receipt, Subscription
from subscriptions.domain.model import NewMessage
from tests.conftest import drop_database, make_database
from tests.contract.bench import Bench, attempts, data, in_memory, in_postgres, outcomes, receipts


@pytest.fixture(params=["memory", "postgres"])
async def bench(request: pytest.FixtureRequest, postgres: EmbeddedPostgres) -> AsyncIterator[Bench]:
    """No subscriptions, no messages."""
    if request.param == "memory":
        yield in_memory()
        return
    database = await make_database(postgres)
    async with in_postgres(database) as made:
        yield made
    await drop_database(postgres, database)


async def queue(bench: Bench, *contents: Any, key: str | None = None, **settings: Any) -> Subscription:
    """A subscription `q` of a channel `q` that holds this already."""
    subscription = await bench.store.subscribe("q", **settings)
    await bench.publish("q", *contents, key=key)
    return subscription


# --- claiming


async def test_a_claim_leases_in_order_up_to_its_limit(bench: Bench) -> None:
    q = await queue(bench, 1, 2, 3, 4)
    first, second, third = [await bench.take(q, limit) for limit in (3, 3, 3)]
    assert (data(first), data(second), data(third)) == (["1", "2", "3"], ["4"], [])
    assert attempts(first) == [1, 1, 1]
    assert len({d.lease for d in first + second}) == 2
    for delivery in first:
        assert 29e6 < delivery.deadline_us - delivery.message.created_at_us < 60e6


@pytest.mark.parametrize(("start", "seen"), [("earliest", ["1", "2"]), ("latest", ["2"])])
async def test_where_it_starts(bench: Bench, start: str, seen: list[str]) -> None:
    await bench.publish("q", 1)
    q = await bench.store.subscribe("q", start=start)
    await bench.publish("q", 2)
    assert data(await bench.take(q)) == seen


async def test_a_filter_that_changes_holds_for_all_that_is_not_leased(bench: Bench) -> None:
    """What is leased stays so; given back, it does not come again."""
    q = await bench.store.subscribe("q")
    for n, kind in enumerate("abbabb"):
        await bench.publish("q", n, type=kind, key="k" if n < 4 else None)
    first, fourth, fifth = await bench.take(q)
    assert data([first, fourth, fifth]) == ["0", "4", "5"]
    await bench.store.change("q", filter={"types": ["a"]})
    assert await bench.take(q) == []
    assert await bench.ack(q, first, fourth) == ["acked", "acked"]
    assert await bench.nack(q, fifth, delay=0) == ["nacked"]
    assert data(await bench.take(q)) == ["3"]
    await bench.store.change("q", filter=None)
    await bench.publish("q", 6, type="b")
    assert data(await bench.take(q)) == ["6"]
    assert await bench.deaths() == []


async def test_what_it_is_about(bench: Bench) -> None:
    q = await bench.store.subscribe("q", "a", "b.*", filter={"types": ["x"], "keys": ["k"]})
    for channel in ("a", "b", "b.c", "b.c.d", "c"):
        await bench.publish(channel, f'"{channel}"', type="x", key="k")
    await bench.publish("a", 1, type="y", key="k")
    await bench.publish("a", 2, type="x", key="l")
    await bench.publish("a", 3, type="x")
    assert data(await bench.take(q)) == ['"a"', '"b.c"']


async def test_several_channels_are_read_as_far_as_they_are_settled(bench: Bench) -> None:
    one, many = await bench.store.subscribe("one", "a"), await bench.store.subscribe("many", "a", "b")
    first, second = [(await bench.publish("a", n))[0] for n in (1, 2)]
    assert data((await bench.port.claim(one.id, first, 10)).deliveries) == ["1", "2"]
    assert data((await bench.port.claim(many.id, first, 10)).deliveries) == ["1"]
    assert data((await bench.port.claim(many.id, second, 10)).deliveries) == ["2"]


async def test_what_lies_in_the_future_is_no_watermark(bench: Bench) -> None:
    many = await bench.store.subscribe("many", "a", "b")
    await bench.publish("a", 1)
    assert not (await bench.port.claim(many.id, 2**53 - 1, 10)).deliveries
    assert data(await bench.take(many)) == ["1"]


async def test_no_more_than_may_be_in_flight(bench: Bench) -> None:
    q = await queue(bench, 1, 2, 3, max_in_flight=2)
    first = await bench.take(q)
    assert data(first) == ["1", "2"]
    claimed = await bench.claim(q)
    assert (claimed.deliveries, claimed.more) == ((), False)
    await bench.ack(q, first[0])
    assert data(await bench.take(q)) == ["3"]


async def test_whether_there_is_more(bench: Bench) -> None:
    q = await queue(bench, 1, 2, 3, ordering="none")
    assert (await bench.claim(q, 2)).more
    assert not (await bench.claim(q, 2)).more
    assert not (await bench.claim(q, 2)).more


async def test_when_something_is_due_by_time_alone(bench: Bench) -> None:
    q = await queue(bench, 1, 2)
    assert (await bench.claim(await bench.store.subscribe("other"))).retry_at_us is None
    claimed = await bench.claim(q)
    deadline = claimed.deliveries[0].deadline_us
    assert claimed.retry_at_us == deadline
    await bench.nack(q, *claimed.deliveries, delay=5)
    soon = (await bench.claim(q)).retry_at_us
    assert soon is not None
    assert deadline - 30e6 < soon < deadline - 20e6


async def test_a_paused_subscription_hands_out_nothing(bench: Bench) -> None:
    q = await queue(bench, 1, 2)
    (held,) = await bench.take(q, 1)
    await bench.store.pause("q", True)
    claimed = await bench.claim(q)
    assert (claimed.deliveries, claimed.paused, claimed.more) == ((), True, False)
    assert await bench.ack(q, held) == ["acked"]
    await bench.store.pause("q", False)
    assert data(await bench.take(q)) == ["2"]


async def test_a_deleted_subscription_is_gone(bench: Bench) -> None:
    q = await queue(bench, 1)
    (held,) = await bench.take(q)
    await bench.store.delete("q")
    claimed = await bench.claim(q)
    assert (claimed.deliveries, claimed.gone) == ((), True)
    assert await bench.ack(q, held) == ["unknown"]
    assert await bench.nack(q, held) == ["unknown"]
    assert await bench.port.live(receipts(q, held)) == [False]
    await bench.release(q, held, delivered=True)
    assert await bench.reap(q) == 0


async def test_what_retention_took_is_not_handed_out(bench: Bench) -> None:
    q = await queue(bench, 1, 2, 3, key="k")
    (held,) = await bench.take(q)
    await bench.nack(q, held, delay=0)
    await bench.store.lose("q", 1)
    assert data(await bench.take(q)) == ["3"]
    assert await bench.deaths() == []


# --- settling


async def test_an_ack_settles_once(bench: Bench) -> None:
    q = await queue(bench, 1, 2)
    one, two = await bench.take(q)
    assert await bench.ack(q, one) == ["acked"]
    assert await bench.ack(q, two, one) == ["acked", "unknown"]
    assert await bench.port.live(receipts(q, one, two)) == [False, False]
    await bench.store.pass_time(100)
    assert data(await bench.take(q)) == []


async def test_one_lease_is_acked_once_in_one_statement_too(bench: Bench) -> None:
    q = await queue(bench, 1)
    (one,) = await bench.take(q)
    assert sorted(await bench.ack(q, one, one)) == ["acked", "unknown"]


async def test_acks_of_several_subscriptions_go_together(bench: Bench) -> None:
    p, q = await bench.store.subscribe("p", "q"), await queue(bench, 1, 2)
    of_p, of_q = await bench.take(p), await bench.take(q)
    mixed = [receipts(q, of_q[0]), receipts(p, *of_p), [Receipt(q.id, 999, 1)], receipts(q, of_q[1])]
    results = await bench.port.ack([receipt for part in mixed for receipt in part])
    assert outcomes(results) == ["acked", "acked", "acked", "unknown", "acked"]


async def test_a_lease_of_another_claim_is_not_believed(bench: Bench) -> None:
    q = await queue(bench, 1)
    (old,) = await bench.take(q)
    await bench.store.pass_time(31)
    (new,) = await bench.take(q)
    assert (new.attempt, new.lease > old.lease) == (2, True)
    assert await bench.ack(q, old) == ["lease_expired"]
    assert await bench.nack(q, old) == ["lease_expired"]
    assert await bench.port.live(receipts(q, old, new)) == [False, True]
    assert await bench.ack(q, new) == ["acked"]


async def test_a_deadline_is_judged_though_nobody_claims(bench: Bench) -> None:
    q = await queue(bench, 1)
    (one,) = await bench.take(q)
    await bench.store.pass_time(31)
    assert await bench.ack(q, one) == ["lease_expired"]
    assert attempts(await bench.take(q)) == [2]


async def test_a_nack_waits_for_its_backoff(bench: Bench) -> None:
    q = await queue(bench, 1, backoff=[10, 60], max_deliver=0)
    for attempt, backoff_s in enumerate((10, 60, 60, 60), 1):
        (one,) = await bench.take(q)
        assert one.attempt == attempt
        assert await bench.nack(q, one) == ["nacked"]
        await bench.store.pass_time(backoff_s - 5)
        assert await bench.take(q) == []
        await bench.store.pass_time(6)


async def test_a_nack_says_when(bench: Bench) -> None:
    q = await queue(bench, 1, 2, 3)
    one, two, three = await bench.take(q)
    await bench.nack(q, one, delay=50)
    await bench.nack(q, two, delay=0)
    assert await bench.nack(q, two, three) == ["lease_expired", "nacked"]
    assert data(await bench.take(q)) == ["2"]
    await bench.store.pass_time(51)
    assert data(await bench.take(q)) == ["1", "2", "3"]


async def test_extending_moves_the_deadline_of_the_same_lease(bench: Bench) -> None:
    q = await queue(bench, 1, 2)
    one, two = await bench.take(q)
    await bench.store.pass_time(20)
    (own,) = await bench.port.extend(receipts(q, one), None)
    (longer,) = await bench.port.extend(receipts(q, one), 100)
    assert own.deadline_us is not None
    assert longer.deadline_us is not None
    assert longer.deadline_us - own.deadline_us > 60e6
    await bench.store.pass_time(50)
    assert outcomes(await bench.port.extend(receipts(q, two, one), 5)) == ["lease_expired", "extended"]
    assert await bench.ack(q, one) == ["acked"]
    assert outcomes(await bench.port.extend(receipts(q, one), 5)) == ["unknown"]


@pytest.mark.parametrize(("delivered", "again"), [(True, [2, 2]), (False, [1, 1])])
async def test_what_is_released_comes_at_once_and_first(
    bench: Bench, *, delivered: bool, again: list[int]
) -> None:
    q = await queue(bench, 1, 2, 3, 4)
    _, two, three = await bench.take(q, 3)
    await bench.release(q, three, two, delivered=delivered)
    assert await bench.port.live(receipts(q, two)) == [False]
    taken = await bench.take(q)
    assert (data(taken), attempts(taken)) == (["2", "3", "4"], [*again, 1])
    assert [d.company for d in taken] == ([2, 2, None] if delivered else [None] * 3)
    await bench.release(q, two, three, delivered=delivered)
    assert await bench.ack(q, *taken) == ["acked"] * 3


# --- lanes


@pytest.mark.parametrize(
    ("ordering", "first"), [("key", "a1 b1 -"), ("channel", "a1"), ("none", "a1 b1 a2 b2 -")]
)
async def test_of_a_lane_one_is_out(bench: Bench, ordering: str, first: str) -> None:
    q = await bench.store.subscribe("q", ordering=ordering)
    await bench.store.append(
        *[NewMessage("q", b'"%b"' % name, key=name[:1].decode()) for name in (b"a1", b"b1", b"a2", b"b2")],
        NewMessage("q", b'"-"'),
    )
    seen = await bench.take(q)
    assert " ".join(text.strip('"') for text in data(seen)) == first
    assert await bench.take(q) == []
    await bench.ack(q, seen[0])
    following = {"key": ['"a2"'], "channel": ['"b1"'], "none": []}
    assert data(await bench.take(q)) == following[ordering]


async def test_what_is_delayed_holds_its_lane(bench: Bench) -> None:
    q = await queue(bench, 1, 2, key="k")
    (one,) = await bench.take(q)
    await bench.nack(q, one, delay=10)
    assert await bench.take(q) == []
    await bench.store.pass_time(11)
    (one,) = await bench.take(q)
    assert await bench.ack(q, one) == ["acked"]
    assert data(await bench.take(q)) == ["2"]


@pytest.mark.parametrize("way", ["nack", "lease", "release", "reject"])
async def test_whatever_kills_the_first_frees_its_lane(bench: Bench, way: str) -> None:
    q = await queue(bench, 1, 2, key="k", max_deliver=1)
    (one,) = await bench.take(q)
    if way == "lease":
        await bench.store.pass_time(31)
    elif way == "release":
        await bench.release(q, one, delivered=True)
    else:
        await bench.nack(q, one, dead_letter=way == "reject")
    assert data(await bench.take(q)) == ["2"]
    assert await bench.deaths() == [("1", "rejected" if way == "reject" else "max_deliver", 1)]


# --- dying


async def test_the_last_attempt_makes_one_dead_letter(bench: Bench) -> None:
    q = await queue(bench, 1, max_deliver=2, backoff=[0])
    seen = []
    for _ in range(2):
        (one,) = await bench.take(q)
        seen.append(one.attempt)
        ((settled,), _) = await bench.port.nack(receipts(q, one), Nack(reason="broken"))
    assert seen == [1, 2]
    (letter,) = await bench.letters()
    assert settled.dead_letter == letter.id
    assert (letter.reason, letter.attempts, letter.last_error) == ("max_deliver", 2, "broken")
    assert letter.message.data == b"1"
    assert await bench.nack(q, one) == ["unknown"]
    assert (await bench.take(q), len(await bench.letters())) == ([], 1)


async def test_a_rejected_message_is_dead_at_once(bench: Bench) -> None:
    q = await queue(bench, 1, 2)
    one, two = await bench.take(q)
    assert await bench.nack(q, one, two, dead_letter=True) == ["nacked", "nacked"]
    assert await bench.deaths() == [("1", "rejected", 1), ("2", "rejected", 1)]


@pytest.mark.parametrize("reaped", [True, False])
async def test_a_lease_that_ends_last_is_dead(bench: Bench, *, reaped: bool) -> None:
    q = await queue(bench, 1, max_deliver=1)
    await bench.take(q)
    await bench.store.pass_time(31)
    assert q.id in await bench.port.due(["default"])
    if reaped:
        assert await bench.reap(q) == 1
    assert await bench.take(q) == []
    (letter,) = await bench.letters()
    assert (letter.reason, letter.last_error) == ("max_deliver", "the lease ended without an ack")


@pytest.mark.parametrize("reaped", [True, False])
async def test_what_expires_is_dead_wherever_it_is(bench: Bench, *, reaped: bool) -> None:
    q = await bench.store.subscribe("q")
    for n, ttl in enumerate((10, 60, 10), 1):
        await bench.publish("q", n, ttl=ttl, key="k")
    await bench.publish("q", 4)
    one, four = await bench.take(q)
    await bench.publish("q", 5, ttl=10)
    await bench.publish("q", 6)
    await bench.store.pass_time(11)
    if reaped:
        assert q.id in await bench.port.due(["default"])
        assert await bench.port.due([]) == []
        assert await bench.reap(q) == 2
        assert await bench.reap(q) == 0
    assert await bench.ack(q, one, four) == ["acked", "acked"], "who has it may finish it"
    rest = await bench.take(q)
    if not reaped:
        await bench.ack(q, *[d for d in rest if d.message.key])
        rest += await bench.take(q)
    assert sorted(data(rest)) == ["2", "6"]
    assert sorted(await bench.deaths()) == [("3", "expired", 0), ("5", "expired", 0)]


async def test_the_subscription_may_be_less_patient(bench: Bench) -> None:
    q = await queue(bench, 1, 2, message_ttl=20)
    await bench.store.pass_time(15)
    await bench.publish("q", 3)
    await bench.store.pass_time(10)
    assert await bench.reap(q) == 2
    assert data(await bench.take(q)) == ["3"]
    assert await bench.deaths() == [("1", "expired", 0), ("2", "expired", 0)]


async def test_of_a_backlog_that_is_too_long_the_oldest_die(bench: Bench) -> None:
    q = await queue(bench, *range(6), max_backlog=2)
    (held, back) = await bench.take(q, 2)
    await bench.nack(q, back, delay=60)
    assert await bench.reap(q) == 3
    assert await bench.deaths() == [("1", "max_backlog", 1), ("2", "max_backlog", 0), ("3", "max_backlog", 0)]
    assert data(await bench.take(q)) == ["4", "5"]
    assert await bench.ack(q, held) == ["acked"]


async def test_a_copy_goes_to_the_dead_letter_channel(bench: Bench) -> None:
    q = await queue(bench, 1, 2, dead_letter={"channel": "dead.{subscription}.{channel}"})
    dead = await bench.store.subscribe("dead", dead_letter={"channel": "dead"})
    await bench.store.subscribe("watch", "dead.>")
    for _ in range(2):
        (one,) = await bench.take(q, 1)
        _, (touched,) = await bench.port.nack(receipts(q, one), Nack(dead_letter=True))
    assert (touched.namespace, touched.channel, touched.last_seq) == ("default", "dead.q.q", 2)
    for letter in await bench.letters():
        (step,) = json.loads(letter.journey)
        assert (step["subscription"], step["channel"], step["reason"], step["count"]) == (
            "q",
            "q",
            "rejected",
            1,
        )
    await bench.publish("dead", 3)
    for count in (1, 2):
        (three,) = await bench.take(dead)
        await bench.nack(dead, three, dead_letter=True)
        (three,) = (await bench.take(dead))[:1]
        await bench.release(dead, three, delivered=False)
        headers = json.loads(three.message.headers)
        (step,) = json.loads(headers["gapless-journey"])
        assert (step["reason"], step["count"]) == ("rejected", count)


async def test_a_claim_says_what_it_published(bench: Bench) -> None:
    q = await queue(bench, 1, max_deliver=1, dead_letter={"channel": "d"})
    await bench.take(q)
    await bench.store.pass_time(31)
    claimed = await bench.claim(q)
    assert [(t.channel, t.last_seq) for t in claimed.touched] == [("d", 1)]
