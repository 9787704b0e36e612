"""Looking at what is not settled, whatever stands behind the ports."""

from __future__ import annotations

import pytest

from subscriptions.domain.delivery import Outstanding, State
from subscriptions.domain.errors import Code, GaplessError
from tests.contract.bench import Bench, attempts, data
from tests.contract.test_deliveries import bench, queue

__all__ = ["bench"]


def told(found: list[Outstanding]) -> list[tuple[str, str, int, int | None]]:
    """What was published, the state, the attempt, and what it waits for."""
    return [
        ((o.message.data or b"").decode().strip('"'), o.state.value, o.attempt, o.waits_for) for o in found
    ]


@pytest.mark.parametrize("limit", [1, 2, 1000])
async def test_each_state_tells_what_belongs_to_it(bench: Bench, limit: int) -> None:
    q = await bench.store.subscribe("q", ack_wait=100, backoff=[50])
    a, *_ = await bench.publish("q", '"a1"', '"a2"', '"a3"', key="a")
    await bench.publish("q", '"b1"', '"n1"')
    c, *_ = await bench.publish("q", '"c1"', '"c2"', key="c")
    taken = await bench.take(q, 4)
    assert [text.strip('"') for text in data(taken)] == ["a1", "b1", "n1", "c1"]
    await bench.nack(q, taken[1])
    await bench.nack(q, taken[2], delay=0, reason="no")
    await bench.publish("q", '"a4"', key="a")
    await bench.publish("q", '"n2"')
    assert told(await bench.look(q, limit=limit)) == [
        ("a1", "leased", 1, None),
        ("a2", "waiting", 0, a),
        ("a3", "waiting", 0, a),
        ("b1", "delayed", 1, None),
        ("n1", "ready", 1, None),
        ("c1", "leased", 1, None),
        ("c2", "waiting", 0, c),
        ("a4", "waiting", 0, a),
        ("n2", "ready", 0, None),
    ]
    for state in State:
        found = await bench.look(q, state, limit)
        assert told(found) == [each for each in told(await bench.look(q)) if each[1] == state]
        for each in found:
            assert (each.at_us is not None) == (state in (State.LEASED, State.DELAYED))
            assert each.member == (0 if state is State.LEASED else None)
    (_, again) = await bench.look(q, State.LEASED)
    assert again.at_us == taken[3].deadline_us
    (delayed,) = await bench.look(q, State.DELAYED)
    assert delayed.at_us is not None
    assert 40e6 < delayed.at_us - delayed.message.created_at_us < 60e6
    assert [each.last_error for each in await bench.look(q, State.READY)] == ["no", None]


async def test_looking_costs_nothing(bench: Bench) -> None:
    q = await queue(bench, 1, 2, 3, max_deliver=1, ordering="none")
    for _ in range(10):
        assert len(await bench.look(q, State.READY)) == 3
    taken = await bench.take(q)
    assert (data(taken), attempts(taken)) == (["1", "2", "3"], [1, 1, 1])
    for _ in range(10):
        assert len(await bench.look(q, State.LEASED)) == 3
    assert await bench.ack(q, *taken) == ["acked"] * 3
    assert await bench.look(q) == []
    assert await bench.deaths() == []


async def test_time_moves_what_one_sees(bench: Bench) -> None:
    """A lease that has ended and a delay that is over are ready, though nobody has found them so yet; what
    has expired is not there."""
    q = await queue(bench, 1, 2, 3, ordering="none", ack_wait=10, message_ttl=100)
    one, _two = await bench.take(q, 2)
    await bench.nack(q, one, delay=50)
    assert [s for _, s, _, _ in told(await bench.look(q))] == ["delayed", "leased", "ready"]
    await bench.store.pass_time(11)
    assert [s for _, s, _, _ in told(await bench.look(q))] == ["delayed", "ready", "ready"]
    await bench.store.pass_time(40)
    assert [s for _, s, _, _ in told(await bench.look(q))] == ["ready", "ready", "ready"]
    await bench.store.pass_time(50)
    assert await bench.look(q) == []
    await bench.reap(q)
    assert len(await bench.deaths()) == 3


@pytest.mark.parametrize("ordering", ["key", "channel", "none"])
async def test_what_is_ready_is_what_a_pull_is_given(bench: Bench, ordering: str) -> None:
    q = await bench.store.subscribe("q", "a", "b", ordering=ordering, max_deliver=0)
    for n in range(12):
        await bench.publish("ab"[n // 2 % 2], n, key=["x", "y", None][n % 3])
    for _ in range(12):
        ready = [str(each.message.id) for each in await bench.look(q, State.READY, 2)]
        taken = await bench.take(q, 100)
        assert [str(each.message.id) for each in taken] == ready
        await bench.ack(q, *taken[:1])
        for delivery in taken[1:]:
            await bench.nack(q, delivery, delay=0)
    assert await bench.look(q) == []


async def test_a_filter_and_retention_are_followed(bench: Bench) -> None:
    q = await bench.store.subscribe("q", filter={"types": ["x"]}, ordering="none")
    for n in range(4):
        await bench.publish("q", n, type="xy"[n % 2])
    assert [d for d, *_ in told(await bench.look(q))] == ["0", "2"]
    taken = await bench.take(q)
    await bench.store.change("q", filter={"types": ["y"]})
    assert [d for d, *_ in told(await bench.look(q))] == ["0", "2"]
    await bench.nack(q, *taken, delay=0)
    assert await bench.look(q) == []
    await bench.publish("q", 4, 5, type="y")
    await bench.store.lose("q", 1)
    assert [d for d, *_ in told(await bench.look(q))] == ["5"]


async def test_there_has_to_be_one_of_this_name(bench: Bench) -> None:
    with pytest.raises(GaplessError) as error:
        await bench.port.look("default", "nobody", None, 0, 10)
    assert error.value.code is Code.SUBSCRIPTION_NOT_FOUND
