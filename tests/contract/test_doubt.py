"""Which message kills its members: what ends without a word is handed out in ever smaller company, and only
what does so alone dies. Whatever stands behind the ports."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from subscriptions.domain.delivery import Delivery, Hand, Subscription
from tests.contract.bench import Bench, attempts, data
from tests.contract.test_deliveries import bench, queue

__all__ = ["bench"]

FEW = 3
"""max_deliver."""


async def hold(bench: Bench, q: Subscription, member: int, prefetch: int, held: int = 0) -> list[Delivery]:
    """What a stream that holds so many gets."""
    hands = [Hand(member, place) for place in range(held + 1, prefetch + 1)]
    claimed = await bench.port.claim(q.id, await bench.store.settled(), len(hands), hands=hands)
    assert {d.member for d in claimed.deliveries} <= {member}
    return list(claimed.deliveries)


async def lose_stream(bench: Bench, q: Subscription, deliveries: Sequence[Delivery]) -> None:
    await bench.release(q, *deliveries, delivered=True)


async def lose_time(bench: Bench, q: Subscription, deliveries: Sequence[Delivery]) -> None:
    await bench.store.pass_time(31)
    await bench.reap(q)


async def run(
    bench: Bench, q: Subscription, poison: str, prefetch: int, lose: Callable[..., object]
) -> list[int]:
    """One member after the other takes what it can and dies at the poison; all before it in the hand are
    acked. How many each that died had."""
    hands: list[int] = []
    for member in range(1, 40):
        hand = await hold(bench, q, member, prefetch)
        while hand:
            if data(hand)[0] == poison:
                hands.append(len(hand))
                await lose(bench, q, hand)  # type: ignore[misc]
                break
            await bench.ack(q, hand.pop(0))
            hand += await hold(
                bench, q, member, min([prefetch, *[d.company or prefetch for d in hand]]), len(hand)
            )
        else:
            if not await bench.take(q):
                return hands
    raise AssertionError(hands)


@pytest.mark.parametrize("lose", [lose_stream, lose_time])
async def test_only_what_kills_its_members_becomes_a_dead_letter(
    bench: Bench, lose: Callable[..., object]
) -> None:
    q = await queue(bench, *range(10), max_deliver=FEW)
    hands = await run(bench, q, "0", 10, lose)
    assert hands == [10, 10, 5, 2, 1, 1, 1]
    assert await bench.deaths() == [("0", "max_deliver", 7)], "attempts are counted all the same"


@pytest.mark.parametrize("poison", ["4", "9"])
async def test_wherever_it_lies(bench: Bench, poison: str) -> None:
    q = await queue(bench, *range(10), max_deliver=FEW)
    hands = await run(bench, q, poison, 10, lose_stream)
    assert hands == sorted(hands, reverse=True)
    assert hands[-FEW:] == [1] * FEW
    ((dead, reason, _),) = await bench.deaths()
    assert (dead, reason) == (poison, "max_deliver")


async def test_what_waits_behind_it_in_its_lane_comes_after_it(bench: Bench) -> None:
    q = await queue(bench, *range(3), max_deliver=FEW, key="k")
    await bench.publish("q", 9, key="l")
    hands = await run(bench, q, "0", 10, lose_stream)
    assert hands == [2, 2, 1, 1, 1]
    assert await bench.deaths() == [("0", "max_deliver", 5)]


async def test_a_member_alone_with_it_is_a_strike_each_time(bench: Bench) -> None:
    q = await queue(bench, 1, max_deliver=FEW)
    assert await run(bench, q, "1", 10, lose_stream) == [1] * FEW


async def test_a_nack_is_a_word(bench: Bench) -> None:
    """It counts, and the message is in no doubt any more."""
    q = await queue(bench, 1, 2, max_deliver=FEW, backoff=[0])
    for _ in range(2):
        await lose_stream(bench, q, await hold(bench, q, 1, 10))
    (one,) = await hold(bench, q, 1, 10)
    assert (data([one]), one.company) == (["1"], 1)
    (two,) = await hold(bench, q, 2, 10)
    await bench.ack(q, two)
    for _ in range(FEW - 1):
        await bench.nack(q, one, delay=0)
        (one,) = await hold(bench, q, 1, 10)
        assert one.company is None
    await bench.nack(q, one)
    assert [death[:2] for death in await bench.deaths()] == [("1", "max_deliver")]


async def test_a_hand_that_is_too_large_gets_nothing_until_it_is_small_enough(bench: Bench) -> None:
    """Or what is in doubt would never come to its turn."""
    q = await queue(bench, 1, max_deliver=FEW)
    await lose_stream(bench, q, await hold(bench, q, 1, 10))
    await bench.publish("q", 2, 3, 4)
    assert await hold(bench, q, 2, 10, held=1) == []
    assert data(await hold(bench, q, 3, 10)) == ["1"], "one that holds nothing gets it, and nothing else"
    assert data(await hold(bench, q, 2, 10, held=1)) == ["2", "3", "4"]


async def test_what_was_never_sent_is_in_no_doubt(bench: Bench) -> None:
    q = await queue(bench, 1, 2, max_deliver=FEW)
    one, two = await hold(bench, q, 1, 10)
    await bench.release(q, one, delivered=True)
    await bench.release(q, two, delivered=False)
    one, two = sorted(await bench.take(q), key=lambda d: d.message.id)
    assert (one.company, two.company) == (1, None)
    assert attempts([one, two]) == [2, 1]


async def test_pulls_of_one_message_each_are_one_company(bench: Bench) -> None:
    """Somebody pulled five one by one, and died of the first. Whose a pull is nobody knows."""
    q = await queue(bench, *range(5), max_deliver=FEW)
    for _ in range(20):
        hand: list[Delivery] = []
        while len(hand) < 5 and (more := await bench.take(q, 1)):
            await bench.store.pass_time(0.1)
            hand += more
        if not hand:
            break
        if "0" in data(hand):
            hand = hand[: data(hand).index("0")]
            await bench.ack(q, *hand)
            await bench.store.pass_time(30)
            await bench.reap(q)
            await bench.store.pass_time(1)
            await bench.reap(q)
        else:
            await bench.ack(q, *hand)
    assert [death[:2] for death in await bench.deaths()] == [("0", "max_deliver")]
    assert await bench.take(q) == []


async def test_pulls_of_what_is_in_no_doubt_go_on(bench: Bench) -> None:
    """While one that is in doubt is out."""
    q = await queue(bench, 1, max_deliver=FEW)
    await bench.take(q)
    await lose_time(bench, q, [])
    await bench.publish("q", 2, 3, 4)
    assert data(await bench.take(q)) == ["1", "2", "3", "4"]
    assert (await bench.deaths()) == []
