"""Publishing and settling together: all of it or nothing, over every adapter."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from subscriptions.domain.delivery import Delivery, Receipt, State, Subscription
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Append, Appended, NewMessage
from tests.contract.bench import Bench, code_of, data, receipts
from tests.contract.test_deliveries import bench, queue

__all__ = ["bench"]


def output(
    *channels: str, key: str | None = None, body: bytes = b"body", expected: int | None = None
) -> Append:
    messages = tuple(NewMessage(channel, b'"out"') for channel in channels or ("out",))
    return Append("default", messages, key, body if key else b"", expected)


async def both(bench: Bench, append: Append | None, *held: Receipt) -> Appended:
    places = [f"ack[0].receipts[{number}]" for number in range(len(held))]
    return await bench.transactions.transact(append, held, places)


async def transact(
    bench: Bench, append: Append | None, subscription: Subscription, *deliveries: Delivery
) -> Appended:
    return await both(bench, append, *receipts(subscription, *deliveries))


async def stale(
    bench: Bench, append: Append | None, subscription: Subscription, *deliveries: Delivery
) -> list[str]:
    """Which receipts the refusal names."""
    with pytest.raises(GaplessError) as refused:
        await transact(bench, append, subscription, *deliveries)
    assert refused.value.code is Code.TRANSACTION_CONFLICT
    return [error.field for error in refused.value.errors]


async def taken(bench: Bench, count: int = 1) -> tuple[Subscription, list[Delivery]]:
    q = await queue(bench, *range(count), ordering="none")
    return q, await bench.take(q, count)


async def nothing_happened(bench: Bench, subscription: Subscription, *deliveries: Delivery) -> None:
    """No message, no channel, and every lease still holds."""
    assert await code_of(bench.channels.get("default", "out")) is Code.CHANNEL_NOT_FOUND
    assert await bench.port.live(receipts(subscription, *deliveries)) == [True] * len(deliveries)


async def test_both_are_done(bench: Bench) -> None:
    q, deliveries = await taken(bench, 3)
    answer = await transact(bench, output("out", "more", "out"), q, *deliveries[:2])
    assert [(p.channel, p.seq) for p in answer.positions] == [("out", 1), ("more", 1), ("out", 2)]
    ids = [p.id for p in answer.positions]
    assert (ids == sorted(ids), answer.replayed) == (True, False)
    assert [m.id for m in await bench.stored("out")] == [ids[0], ids[2]]
    assert await bench.ack(q, *deliveries) == ["unknown", "unknown", "acked"]


async def test_of_many_one_is_stale_and_nothing_happens(bench: Bench) -> None:
    q, deliveries = await taken(bench, 100)
    await bench.ack(q, deliveries[41])
    await bench.nack(q, deliveries[70], delay=60)
    named = await stale(bench, output("out", "other"), q, *deliveries)
    assert named == ["ack[0].receipts[41]", "ack[0].receipts[70]"]
    del deliveries[70], deliveries[41]
    await nothing_happened(bench, q, *deliveries)
    assert [o.state for o in await bench.look(q)] == [
        *[State.LEASED] * 69,
        State.DELAYED,
        *[State.LEASED] * 29,
    ]
    answer = await transact(bench, output("out", "other"), q, *deliveries)
    assert [position.seq for position in answer.positions] == [1, 1]
    assert [o.state for o in await bench.look(q)] == [State.DELAYED]


async def test_a_lease_that_ended_is_stale_though_nobody_noticed(bench: Bench) -> None:
    q, (delivery,) = await taken(bench)
    await bench.store.pass_time(31)
    assert await stale(bench, output(), q, delivery) == ["ack[0].receipts[0]"]
    assert await bench.stored("out") == []
    assert data(await bench.take(q)) == ["0"]


@pytest.mark.parametrize("way", ["twice", "another lease", "another subscription", "deleted", "never"])
async def test_what_is_no_lease_is_named(bench: Bench, way: str) -> None:
    q, (one, two) = await taken(bench, 2)
    other = await bench.store.subscribe("other")
    first, second = receipts(q, one, two)
    match way:
        case "twice":
            second = first
        case "another lease":
            second = second._replace(lease=second.lease + 1)
        case "another subscription":
            second = second._replace(subscription_id=other.id)
        case "deleted":
            await bench.store.delete("other")
            second = second._replace(subscription_id=other.id)
        case _:
            second = second._replace(message_id=10**12)
    with pytest.raises(GaplessError) as refused:
        await both(bench, output(), first, second)
    assert refused.value.code is Code.TRANSACTION_CONFLICT
    assert [error.field for error in refused.value.errors] == ["ack[0].receipts[1]"]
    await nothing_happened(bench, q, one, two)


async def test_what_cannot_be_published_acks_nothing(bench: Bench) -> None:
    """The refusals are those of a publish."""
    q, (delivery,) = await taken(bench)
    elsewhere = Append("elsewhere", (NewMessage("out", b"1"),))
    assert await code_of(transact(bench, elsewhere, q, delivery)) is Code.NOT_FOUND
    assert await code_of(transact(bench, output(expected=7), q, delivery)) is Code.HEAD_MISMATCH
    careful = bench.careful.transact(output(), receipts(q, delivery), ["x"])
    assert await code_of(careful) is Code.CHANNEL_NOT_FOUND
    await nothing_happened(bench, q, delivery)
    await transact(bench, output(key="k", expected=0), q, delivery)
    other = transact(bench, output(key="k", body=b"another"), q, delivery)
    assert await code_of(other) is Code.IDEMPOTENCY_MISMATCH
    assert len(await bench.stored("out")) == 1


async def test_a_repetition_is_answered_as_the_first_was(bench: Bench) -> None:
    """Its receipts are settled by then, and the subscription may be gone: that is no conflict."""
    q, (delivery, later) = await taken(bench, 2)
    first = await transact(bench, output(key="k"), q, delivery)
    again = await transact(bench, output(key="k"), q, delivery)
    assert (first.replayed, again.replayed) == (False, True)
    assert again.positions[0].id == first.positions[0].id
    assert await transact(bench, output(key="k"), q, later) == again
    assert await bench.port.live(receipts(q, later)) == [True], "what was answered before settles nothing"
    await bench.store.delete("q")
    assert (await transact(bench, output(key="k"), q, delivery)).positions == again.positions
    assert len(await bench.stored("out")) == 1


async def test_a_refused_transaction_uses_no_key_up(bench: Bench) -> None:
    q, (one, two) = await taken(bench, 2)
    await bench.ack(q, one)
    assert await stale(bench, output(key="k"), q, one, two) == ["ack[0].receipts[0]"]
    assert not (await transact(bench, output(key="k"), q, two)).replayed


async def test_acks_alone(bench: Bench) -> None:
    q, deliveries = await taken(bench, 2)
    assert await transact(bench, None, q, *deliveries) == Appended(())
    assert await stale(bench, None, q, deliveries[0]) == ["ack[0].receipts[0]"]
    assert (await bench.take(q), await bench.look(q)) == ([], [])


async def test_a_publish_alone(bench: Bench) -> None:
    answer = await both(bench, output())
    assert [m.id for m in await bench.stored("out")] == [answer.positions[0].id]


async def test_a_lane_goes_on_when_its_first_is_settled(bench: Bench) -> None:
    q = await queue(bench, 1, 2, key="k")
    (first,) = await bench.take(q)
    assert await bench.take(q) == []
    await transact(bench, output(), q, first)
    assert data(await bench.take(q)) == ["2"]


async def test_what_a_replay_gave_back_is_settled_too(bench: Bench) -> None:
    q = await queue(bench, 1)
    (letter,) = await bench.bury(q)
    await bench.dead_letters.replay("default", letter)
    await transact(bench, output(), q, *await bench.take(q))
    assert (await bench.take(q), await bench.letters()) == ([], [])


# --- at once


async def test_a_crowd_does_each_once(bench: Bench) -> None:
    """Eight workers that hold the same receipts: each is consumed once, and produces once."""
    q, deliveries = await taken(bench, 20)

    async def work(offset: int) -> int:
        done = 0
        for turn in range(20):
            delivery = deliveries[(turn + offset) % 20]
            with suppress(GaplessError):
                await transact(bench, output("out", f"out.{offset % 2}"), q, delivery)
                done += 1
        return done

    assert sum(await asyncio.gather(*(work(n) for n in range(8)))) == 20
    assert len(await bench.stored("out")) == 20
    assert (await bench.take(q), await bench.look(q)) == ([], [])


async def test_acks_of_several_subscriptions_in_any_order(bench: Bench) -> None:
    """Nobody waits for another who waits for him, whatever order is asked for."""
    made = [await bench.store.subscribe(name, "in", ordering="none") for name in ("a", "b", "c")]
    await bench.publish("in", *range(30))
    held = {s.id: await bench.take(s, 30) for s in made}

    async def work(turn: int) -> None:
        order = made[turn % 3 :] + made[: turn % 3]
        chosen = [r for s in (order if turn % 2 else order[::-1]) for r in receipts(s, held[s.id][turn])]
        await both(bench, output(f"out{turn % 2}", f"out{1 - turn % 2}"), *chosen)

    await asyncio.gather(*(work(turn) for turn in range(30)))
    assert [await bench.look(s) for s in made] == [[], [], []]
    assert len(await bench.stored("out0")) == len(await bench.stored("out1")) == 30


async def test_at_once_with_one_key(bench: Bench) -> None:
    q, (delivery,) = await taken(bench)
    many = await asyncio.gather(*(transact(bench, output(key="k"), q, delivery) for _ in range(8)))
    assert len({answer.positions[0].id for answer in many}) == 1
    assert [answer.replayed for answer in many].count(False) == 1
    assert len(await bench.stored("out")) == 1
