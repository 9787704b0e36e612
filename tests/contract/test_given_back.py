"""What was not worked on is given back, as if it were not handed out. Whatever stands behind the ports."""

from __future__ import annotations

import pytest

from subscriptions.domain.errors import Code
from tests.contract.bench import Bench, attempts, code_of, data, receipts
from tests.contract.test_deliveries import bench, queue
from tests.contract.test_doubt import hold

__all__ = ["bench"]


async def test_it_is_no_attempt_however_often(bench: Bench) -> None:
    q = await queue(bench, 1, max_deliver=1)
    for _ in range(6):
        (one,) = await bench.take(q)
        assert one.attempt == 1
        assert await bench.give_back(q, one) == ["released"]
        assert [(o.state, o.attempt, o.last_error) for o in await bench.look(q)] == [("ready", 0, None)]
    (one,) = await bench.take(q)
    assert await bench.nack(q, one) == ["nacked"]
    assert await bench.deaths() == [("1", "max_deliver", 1)]


async def test_attempts_and_strikes_of_before_stay(bench: Bench) -> None:
    q = await queue(bench, 1, max_deliver=2, backoff=[])
    (one,) = await bench.take(q)
    await bench.nack(q, one, reason="first")
    for _ in range(3):
        (one,) = await bench.take(q)
        assert one.attempt == 2
        await bench.give_back(q, one)
    assert [(o.attempt, o.last_error) for o in await bench.look(q)] == [(1, "first")]
    (one,) = await bench.take(q)
    await bench.nack(q, one)
    assert await bench.deaths() == [("1", "max_deliver", 2)]


async def test_it_comes_again_after_its_delay(bench: Bench) -> None:
    q = await queue(bench, 1, 2, ordering="none")
    one, two = await bench.take(q)
    assert await bench.give_back(q, one, two, delay=10) == ["released"] * 2
    assert {o.state for o in await bench.look(q)} == {"delayed"}
    claimed = await bench.claim(q)
    assert claimed.deliveries == ()
    assert claimed.retry_at_us is not None
    await bench.store.pass_time(11)
    taken = await bench.take(q)
    assert (data(taken), attempts(taken)) == (["1", "2"], [1, 1])


@pytest.mark.parametrize("delay", [None, 10])
async def test_it_keeps_its_place_in_its_lane(bench: Bench, delay: float | None) -> None:
    q = await queue(bench, 1, 2, 3, key="k")
    (one,) = await bench.take(q)
    await bench.give_back(q, one, delay=delay)
    if delay:
        assert await bench.take(q) == []
        await bench.store.pass_time(delay + 1)
    for wanted in ("1", "2", "3"):
        (taken,) = await bench.take(q)
        assert data([taken]) == [wanted]
        await bench.ack(q, taken)


async def test_each_receipt_has_its_own_result(bench: Bench) -> None:
    q = await queue(bench, 1, 2, 3, 4, ordering="none")
    one, two, three, four = await bench.take(q)
    await bench.ack(q, two)
    await bench.nack(q, three, delay=0)
    forged = four._replace(lease=four.lease + 1)
    wanted = ["released", "unknown", "lease_expired", "lease_expired"]
    assert await bench.give_back(q, one, two, three, forged) == wanted
    assert await bench.give_back(q, one) == ["lease_expired"], "given back already"
    assert await bench.ack(q, one) == ["lease_expired"]
    assert await bench.ack(q, four) == ["acked"]
    assert await bench.give_back(q, four) == ["unknown"]


async def test_an_ended_lease_is_not_given_back(bench: Bench) -> None:
    """It was an attempt that ended without a word."""
    q = await queue(bench, 1)
    (one,) = await bench.take(q)
    await bench.store.pass_time(31)
    assert await bench.give_back(q, one) == ["lease_expired"]
    (again,) = await bench.take(q)
    assert again.attempt == 2
    assert await bench.give_back(q, one) == ["lease_expired"], "another member has it"
    assert await bench.port.live(receipts(q, again)) == [True]


async def test_what_is_in_doubt_stays_so(bench: Bench) -> None:
    q = await queue(bench, *range(4), max_deliver=3)
    await bench.release(q, *await hold(bench, q, 1, 4), delivered=True)
    for _ in range(3):
        hand = await hold(bench, q, 2, 10)
        assert [(d.company, d.attempt) for d in hand] == [(4, 2)] * 4
        await bench.give_back(q, *hand)
    assert await bench.deaths() == []


async def test_what_the_service_withdraws_is_an_attempt_and_nobodys_fault(bench: Bench) -> None:
    q = await queue(bench, 1, 2, max_deliver=1, ordering="none")
    for attempt in range(1, 4):
        hand = await hold(bench, q, 1, 1) + await hold(bench, q, 2, 10)
        assert [(d.company, d.attempt) for d in hand] == [(None, attempt)] * 2
        await bench.withdraw(q, *hand)
        await bench.withdraw(q, *hand)
    assert await bench.deaths() == []


async def test_the_service_withdraws_no_lease_of_another_member(bench: Bench) -> None:
    q = await queue(bench, 1)
    (one,) = await bench.take(q)
    await bench.store.pass_time(31)
    (again,) = await bench.take(q)
    await bench.withdraw(q, one)
    assert await bench.port.live(receipts(q, again)) == [True]


async def test_it_makes_room_in_flight(bench: Bench) -> None:
    q = await queue(bench, 1, 2, max_in_flight=1)
    (one,) = await bench.take(q)
    await bench.give_back(q, one)
    (one,) = await bench.take(q)
    assert data([one]) == ["1"]
    assert await bench.take(q) == []


async def test_whatever_else_takes_a_message_away_leaves_nothing_to_give_back(bench: Bench) -> None:
    q = await queue(bench, 1, 2, ordering="none")
    one, two = await bench.take(q)
    await bench.store.seek("q", "latest")
    assert await bench.give_back(q, one) == ["unknown"]
    await bench.store.delete("q")
    assert await bench.give_back(q, two) == ["unknown"]
    assert await code_of(bench.look(q)) is Code.SUBSCRIPTION_NOT_FOUND


async def test_a_purge_takes_what_was_given_back(bench: Bench) -> None:
    q = await queue(bench, 1, 2, ordering="none")
    one, _ = await bench.take(q)
    await bench.give_back(q, one)
    assert await bench.store.purge("q") == 1
    assert [o.state for o in await bench.look(q)] == ["leased"]
    assert await bench.give_back(q, one) == ["unknown"]
