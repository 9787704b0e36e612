"""Dead letters that are given back: to whom, in what state, at what time, over every adapter."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable
from typing import Any

import pytest

from subscriptions.domain.delivery import DeadLetterFilter, Reason, State, Subscription
from subscriptions.domain.errors import Code, GaplessError
from tests.contract.bench import Bench, attempts, code_of, data
from tests.contract.test_deliveries import bench, queue
from tests.race.journeys import told

__all__ = ["bench"]

ALL_LETTERS = DeadLetterFilter("default")


async def outcome(work: Awaitable[object]) -> Any:
    """What it gave, or the code of the refusal."""
    try:
        return await work
    except GaplessError as error:
        return error.code


async def one_dead(bench: Bench, **settings: Any) -> tuple[Subscription, int, int]:
    """Of a message: its subscription, its id, and the entry's."""
    q = await bench.store.subscribe("q", **settings)
    (message,) = await bench.publish("q", 1)
    (letter,) = await bench.bury(q)
    return q, message, letter


async def dead(bench: Bench, count: int, **settings: Any) -> Subscription:
    """A subscription that gave up on so many messages of one key."""
    q = await queue(bench, *range(count), key="k", **settings)
    for _ in range(count):
        await bench.bury(q)
    return q


async def taken_and_acked(bench: Bench, q: Subscription) -> list[str]:
    taken = await bench.take(q)
    await bench.ack(q, *taken)
    return data(taken)


# --- one


async def test_a_replay_reaches_the_one_that_failed(bench: Bench) -> None:
    made = [await bench.store.subscribe(name, "in") for name in ("a", "b", "c")]
    (message,) = await bench.publish("in", 1)
    await bench.ack(made[0], *await bench.take(made[0]))
    (letter,) = await bench.bury(made[1])
    (held,) = await bench.take(made[2])
    assert await bench.dead_letters.replay("default", letter) == ("b", message)
    assert await bench.letters() == []
    given = [await bench.take(s) for s in made]
    assert ([data(g) for g in given], attempts(given[1])) == ([[], ["1"], []], [1])
    assert await bench.ack(made[2], held) == ["acked"]
    assert await bench.ack(made[1], *given[1]) == ["acked"]
    assert await bench.take(made[1]) == []


async def test_of_many_replays_of_one_one_wins(bench: Bench) -> None:
    q, message, letter = await one_dead(bench)
    answers = await asyncio.gather(*(outcome(bench.dead_letters.replay("default", letter)) for _ in range(8)))
    assert Counter(answers) == {("q", message): 1, Code.DEAD_LETTER_NOT_FOUND: 7}
    assert await taken_and_acked(bench, q) == ["1"]
    assert await bench.take(q) == []


async def test_attempts_begin_anew_and_the_journey_goes_on(bench: Bench) -> None:
    q = await bench.store.subscribe("q", max_deliver=1)
    await bench.publish("q", 1)
    for count in (1, 2, 3):
        (delivery,) = await bench.take(q)
        assert (delivery.attempt, delivery.message.headers) == (1, b"")
        await bench.nack(q, delivery)
        (letter,) = await bench.letters()
        assert told(letter) == [("q", "q", "max_deliver", count)]
        await bench.dead_letters.replay("default", letter.id)


async def test_its_own_expiry_is_over_and_the_subscription_counts_anew(bench: Bench) -> None:
    q = await bench.store.subscribe("q", message_ttl=100)
    await bench.publish("q", 1, ttl=10)
    await bench.store.pass_time(11)
    assert await bench.reap(q) == 1
    (letter,) = await bench.letters()
    assert (letter.reason, letter.attempts) == ("expired", 0)
    await bench.dead_letters.replay("default", letter.id)
    await bench.store.pass_time(99)
    assert await bench.reap(q) == 0
    await bench.store.pass_time(2)
    assert await bench.reap(q) == 1
    (letter,) = await bench.letters()
    await bench.dead_letters.replay("default", letter.id)
    (delivery,) = await bench.take(q)
    assert (delivery.attempt, data([delivery])) == (1, ["1"])


async def test_it_waits_for_what_is_under_way(bench: Bench) -> None:
    q = await queue(bench, 1, 2, 3, key="k")
    (letter,) = await bench.bury(q)
    (two,) = await bench.take(q)
    await bench.dead_letters.replay("default", letter)
    assert await bench.take(q) == [], "2 is in flight"
    await bench.ack(q, two)
    again = await bench.take(q)
    assert (data(again), attempts(again)) == (["1"], [1]), "before 3, which came after it"
    await bench.ack(q, *again)
    assert data(await bench.take(q)) == ["3"]


async def test_it_goes_ahead_of_a_later_one_that_was_not_handed_out(bench: Bench) -> None:
    q = await queue(bench, 1, 2, 3, key="k")
    letters = [letter for _ in range(3) for letter in await bench.bury(q)]
    for letter in (letters[1], letters[2], letters[0]):
        await bench.dead_letters.replay("default", letter)
    for expected in ("1", "2", "3"):
        taken = await bench.take(q)
        assert data(taken) == [expected]
        await bench.ack(q, *taken)


async def test_one_that_was_handed_out_keeps_its_turn(bench: Bench) -> None:
    q = await queue(bench, 1, 2, key="k", backoff=[10])
    (letter,) = await bench.bury(q)
    await bench.nack(q, *await bench.take(q))
    await bench.dead_letters.replay("default", letter)
    assert await bench.take(q) == [], "2 comes again in 10 s"
    await bench.store.pass_time(11)
    (second,) = await bench.take(q)
    assert (data([second]), second.attempt) == (["2"], 2)
    await bench.ack(q, second)
    assert data(await bench.take(q)) == ["1"]


async def test_into_an_empty_lane_it_is_due_at_once(bench: Bench) -> None:
    q = await queue(bench, 1, key="k")
    (letter,) = await bench.bury(q)
    await bench.dead_letters.replay("default", letter)
    assert data(await bench.take(q)) == ["1"]


async def test_it_comes_whatever_the_filter_says(bench: Bench) -> None:
    """Somebody asked for this very message, before the filter changed or after."""
    q = await queue(bench, *range(4))
    first, second, third, fourth = await bench.bury(q, 4)
    await bench.dead_letters.replay("default", first)
    await bench.store.change("q", filter={"types": ["none of them"]})
    await bench.dead_letters.replay("default", second)
    assert sorted(data(await bench.take(q))) == ["0", "1"]
    assert [letter.id for letter in await bench.letters()] == [third, fourth]


async def test_it_is_given_though_its_channel_is_gone(bench: Bench) -> None:
    q = await queue(bench, 1, 2, key="k", ordering="none")
    letters = await bench.bury(q, 2)
    await bench.store.remove("q")
    for letter in letters:
        await bench.dead_letters.replay("default", letter)
    seen = await bench.look(q)
    assert [(o.message.data, o.state, o.last_error) for o in seen] == [
        (b"1", "ready", "nacked"),
        (b"2", "ready", "nacked"),
    ]
    taken = await bench.take(q)
    assert [(d.message.channel, d.message.key, d.message.seq) for d in taken] == [
        ("q", "k", 1),
        ("q", "k", 2),
    ]
    await bench.nack(q, taken[0], dead_letter=True)
    assert await bench.deaths() == [("1", "rejected", 1)]
    assert await bench.ack(q, taken[1]) == ["acked"]


async def test_retention_does_not_take_it(bench: Bench) -> None:
    q, _, letter = await one_dead(bench)
    await bench.dead_letters.replay("default", letter)
    await bench.publish("q", 2)
    await bench.store.lose("q", 1)
    claimed = await bench.claim(q)
    assert (data(claimed.deliveries), claimed.losses) == (["1", "2"], ())


async def test_a_purge_of_the_subscription_takes_it(bench: Bench) -> None:
    q = await queue(bench, 1, 2)
    (letter,) = await bench.bury(q)
    await bench.dead_letters.replay("default", letter)
    assert await bench.store.purge("q") == 2
    assert (await bench.take(q), await bench.letters()) == ([], [])


# --- what became of the subscription


async def test_of_a_subscription_that_is_gone(bench: Bench) -> None:
    """The entry stays; a subscription of the same name gets it."""
    _, message, letter = await one_dead(bench)
    await bench.store.delete("q")
    assert await code_of(bench.dead_letters.replay("default", letter)) is Code.SUBSCRIPTION_NOT_FOUND
    assert await bench.dead_letters.replay_all(ALL_LETTERS) == (0, 1)
    assert [each.id for each in await bench.letters()] == [letter]
    again = await bench.store.subscribe("q", "elsewhere")
    assert await bench.dead_letters.replay("default", letter) == ("q", message)
    await bench.publish("elsewhere", 2)
    assert data(await bench.take(again)) == ["1", "2"]


async def test_what_is_under_way_again_begins_again_there(bench: Bench) -> None:
    """A subscription that was moved back has it already: the lease that is out is its first attempt."""
    q, message, letter = await one_dead(bench, max_deliver=2, backoff=[])
    await bench.store.seek("q", "earliest")
    await bench.nack(q, *await bench.take(q))
    (delivery,) = await bench.take(q)
    assert delivery.attempt == 2
    assert await bench.dead_letters.replay("default", letter) == ("q", message)
    assert await bench.take(q) == []
    await bench.nack(q, delivery)
    (delivery,) = await bench.take(q)
    assert delivery.attempt == 2
    assert await bench.ack(q, delivery) == ["acked"]
    assert (await bench.take(q), await bench.letters()) == ([], [])


async def test_the_first_attempt_again_has_a_first_attempts_delay(bench: Bench) -> None:
    q, _, letter = await one_dead(bench, backoff=[100], max_deliver=2)
    await bench.store.seek("q", "earliest")
    (delivery,) = await bench.take(q)
    await bench.dead_letters.replay("default", letter)
    assert await bench.nack(q, delivery) == ["nacked"]
    assert await bench.take(q) == []
    await bench.store.pass_time(101)
    assert attempts(await bench.take(q)) == [2]


async def test_under_way_again_it_does_not_go_with_its_channel(bench: Bench) -> None:
    """From the log until it is replayed; from then on it is the copy."""
    q, _, letter = await one_dead(bench)
    await bench.store.seek("q", "earliest")
    await bench.nack(q, *await bench.take(q), delay=0)
    await bench.dead_letters.replay("default", letter)
    await bench.store.remove("q")
    taken = await bench.take(q)
    assert (attempts(taken), data(taken)) == ([1], ["1"])
    assert await bench.ack(q, *taken) == ["acked"]


async def test_several_deaths_of_one_message_are_given_back_once(bench: Bench) -> None:
    q, _, _ = await one_dead(bench)
    for _ in range(2):
        await bench.store.seek("q", "earliest")
        await bench.bury(q)
    assert await bench.dead_letters.replay_all(ALL_LETTERS) == (3, 0)
    assert await taken_and_acked(bench, q) == ["1"]
    assert (await bench.take(q), await bench.letters()) == ([], [])


@pytest.mark.parametrize("way", ["seek", "delete"])
async def test_what_was_not_settled_by_then_is_a_dead_letter_again(bench: Bench, way: str) -> None:
    """Leased, delayed and due: its only copy is the one that travels."""
    q = await queue(bench, *range(5), backoff=[100])
    before = await bench.bury(q, 5, reason="broken")
    assert await bench.dead_letters.replay_all(ALL_LETTERS) == (5, 0)
    assert await bench.letters() == []
    taken = await bench.take(q, 3)
    await bench.nack(q, taken[0], reason="not now")
    await bench.ack(q, taken[1])
    await (bench.store.seek("q", "latest") if way == "seek" else bench.store.delete("q"))
    letters = await bench.letters()
    assert sorted(letter.message.data or b"" for letter in letters) == [b"0", b"2", b"3", b"4"]
    assert {(each.reason, each.attempts, each.last_error) for each in letters} == {("rejected", 1, "broken")}
    assert {json.loads(each.journey)[0]["count"] for each in letters} == {1}
    assert min(each.id for each in letters) > max(before)
    if way == "seek":
        assert await bench.take(q) == []
        assert await bench.dead_letters.replay_all(ALL_LETTERS) == (4, 0)
        assert sorted(data(await bench.take(q))) == ["0", "2", "3", "4"]


# --- many


async def test_a_filter_says_which(bench: Bench) -> None:
    a = await bench.store.subscribe("a", "x.*", ordering="none")
    b = await bench.store.subscribe("b", "x.1", ordering="none", max_deliver=1)
    for channel in ("x.1", "x.2"):
        await bench.publish(channel, 1)
    letters = await bench.bury(a, 2)
    await bench.nack(b, *await bench.take(b))

    async def replay(**which: Any) -> tuple[int, int]:
        return await bench.dead_letters.replay_all(DeadLetterFilter("default", **which))

    assert await replay(subscription="nobody") == (0, 0)
    assert await replay(ids=()) == (0, 0)
    assert await replay(ids=(letters[1], 10**12)) == (1, 0)
    assert await replay(reason=Reason.MAX_DELIVER, channel="x.2") == (0, 0)
    assert await replay(reason=Reason.MAX_DELIVER) == (1, 0)
    assert [letter.id for letter in await bench.letters()] == [letters[0]]
    assert (len(await bench.take(a)), len(await bench.take(b))) == (1, 1)


@pytest.mark.parametrize(
    ("most", "wanted"), [(None, (3, 2)), (1, (1, 1)), (2, (2, 1)), (3, (3, 2)), (9, (3, 2))]
)
async def test_a_dry_run_says_what_a_replay_does(
    bench: Bench, most: int | None, wanted: tuple[int, int]
) -> None:
    """Entries of a subscription that is no more lie between, and after the last."""
    here = await bench.store.subscribe("here", "x", ordering="none")
    gone = await bench.store.subscribe("gone", "x", ordering="none")
    await bench.publish("x", *range(3))
    for subscription in (gone, here, here, gone, here):
        await bench.bury(subscription)
    await bench.store.delete("gone")
    before = await bench.letters()
    counts = await bench.dead_letters.replayable(ALL_LETTERS, most)
    assert await bench.letters() == before
    assert counts == wanted
    assert await bench.dead_letters.replay_all(ALL_LETTERS, most) == counts
    assert data(await bench.take(here)) == ["0", "1", "2"][: counts[0]], "the lowest first"


async def test_at_a_rate_they_are_due_bit_by_bit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer comes at once; nobody has to be there for the rest, whose lifetime begins when it is due."""
    monkeypatch.setattr("db.dead_letters.REPLAY_BATCH", 2)
    q = await dead(bench, 6, ordering="none", message_ttl=30)
    assert await bench.dead_letters.replay_all(ALL_LETTERS, 5, 0.01) == (5, 0)
    seen = await bench.look(q)
    assert [o.state for o in seen] == [State.READY, *[State.DELAYED] * 4]
    due_us = [o.at_us for o in seen if o.at_us is not None]
    assert [round((at_us - due_us[0]) / 1e6) for at_us in due_us] == [0, 100, 200, 300]
    assert len(await bench.letters()) == 1
    for n in range(5):
        taken = await bench.take(q)
        assert (data(taken), attempts(taken)) == ([str(n)], [1])
        assert await bench.take(q) == []
        await bench.ack(q, *taken)
        await bench.store.pass_time(100)
        assert await bench.reap(q) == 0
    assert [letter.reason for letter in await bench.letters()] == ["rejected"]


async def test_what_is_not_due_yet_holds_up_its_key(bench: Bench) -> None:
    q = await dead(bench, 3)
    await bench.publish("q", '"new"', key="k")
    await bench.dead_letters.replay_all(ALL_LETTERS, rate=0.01)
    for wanted in ("0", "1"):
        assert await taken_and_acked(bench, q) == [wanted]
        assert await bench.take(q) == []
        await bench.store.pass_time(100)
    assert await taken_and_acked(bench, q) == ["2"]
    assert await taken_and_acked(bench, q) == ['"new"']
