"""One process's consumers over subscriptions in memory, under virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from subscriptions.domain.delivery import Claimed, Delivery, Hand, Nack, Receipt
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.goodbye import Goodbye
from subscriptions.domain.model import Append, NewMessage
from subscriptions.domain.watermark import Watermark
from subscriptions.engine.durable import endings
from subscriptions.engine.durable.consumers import Consumers
from tests.contract.memory import MemoryAppender, MemoryReader
from tests.contract.memory_deliveries import MemoryDeliveries
from tests.contract.memory_log import MemoryLog
from tests.contract.memory_queues import MemoryQueues
from tests.sim.loop import SeededLoop, run

NS = "default"


class Stage:
    """`calls` counts what was asked of the database; a step in `holds` waits there; `errors` are raised."""

    def __init__(self, loop: SeededLoop) -> None:
        self.loop = loop
        self.log = MemoryLog(lambda: 1_700_000_000_000_000 + round(loop.time() * 1_000_000))
        self.queues = MemoryQueues(self.log)
        self.calls: Counter[str] = Counter()
        self.holds: dict[str, asyncio.Event] = {}
        self.errors: dict[str, Exception] = {}
        self.told: list[tuple[list[int], list[Receipt]]] = []
        self.port = MemoryDeliveries(self.queues, self._pause)
        self._reader = MemoryReader(self.log)
        self._watermark = Watermark()
        self.consumers = self.make()

    def make(self, **more: Any) -> Consumers:
        """Consumers over this database."""
        made = Consumers(
            self.port,
            self.port,
            clock=self.loop.time,
            now_us=self.log.now_us,
            read_watermark=self._look,
            touched=lambda touched: None,
            tell=lambda ids, receipts, released: self.told.append((ids, [*receipts, *released])),
            **more,
        )
        made.start()
        return made

    async def _pause(self, step: str) -> None:
        self.calls[step] += 1
        await asyncio.sleep(0.001)
        if step in self.holds:
            await self.holds[step].wait()
        if step in self.errors:
            raise self.errors[step]

    async def _look(self) -> tuple[int, int]:
        tick = await self._reader.tick()
        self._watermark.observe(tick)
        return self._watermark.settled, tick.last_id

    async def store(self, channel: str = "q", count: int = 1, **more: Any) -> list[int]:
        """Commit messages that nobody is told of."""
        new = tuple(NewMessage(channel, b"{}", **more) for _ in range(count))
        (answer,) = await MemoryAppender(self.log).append([Append(NS, new)])
        assert not isinstance(answer, GaplessError), answer
        return [position.id for position in answer.positions]

    async def pull(self, name: str = "q", limit: int = 10, wait_s: float = 0.0) -> list[Delivery]:
        pulled = await self.consumers.pull(NS, name, limit, wait_s)
        self.consumers.reported(pulled)
        return pulled.deliveries

    def attempts(self, name: str = "q") -> dict[int, int]:
        """Message id → how often it was handed out, of what is not leased."""
        queue = self.queues.find(NS, name)
        assert queue is not None
        return {i: row.attempts for i, row in sorted(queue.rows.items()) if row not in queue.leased()}


Play = Callable[[Stage], Awaitable[None]]


def on_stage(play: Play) -> Callable[[], None]:
    """A test that runs under virtual time, its consumers stopped in the end."""

    def test() -> None:
        async def program() -> None:
            stage = Stage(loop)
            await play(stage)
            stage.holds.clear()
            stage.errors.clear()
            await stage.consumers.stop()

        loop = SeededLoop()
        run(program(), loop=loop)

    test.__name__ = play.__name__
    test.__doc__ = play.__doc__
    return test


def ids(deliveries: list[Delivery]) -> list[int]:
    return [delivery.message.id for delivery in deliveries]


def receipt(delivery: Delivery, subscription_id: int = 1) -> Receipt:
    return Receipt(subscription_id, delivery.message.id, delivery.lease)


# --- who leaves


@on_stage
async def test_a_stream_that_ends_gives_back_what_it_saw_first(stage: Stage) -> None:
    """And what it never took does not count as an attempt."""
    stage.queues.subscribe("q", ordering="none")
    member = await stage.consumers.open(NS, "q", 4)
    first = await stage.store(count=2)
    assert ids(await member.next(5)) == first
    rest = await stage.store(count=4)
    await asyncio.sleep(2)
    assert ids(member.inbox) == rest[:2]
    stage.consumers.close(member)
    await asyncio.sleep(0.1)
    assert stage.attempts() == {first[0]: 1, first[1]: 1, rest[0]: 0, rest[1]: 0}
    taken = [ids(await stage.pull(limit=1)) for _ in range(5)]
    assert taken == [[id_] for id_ in first + rest[:3]]


@on_stage
async def test_what_comes_with_the_farewell_was_never_delivered(stage: Stage) -> None:
    stage.queues.subscribe("q")
    member = await stage.consumers.open(NS, "q", 4)
    await stage.store(count=2)
    await asyncio.sleep(2)
    member.leave(Goodbye.SHUTDOWN)
    assert await member.next(5) == []
    stage.consumers.close(member)
    stage.consumers.close(member)
    assert stage.consumers.members == 0
    await asyncio.sleep(0.1)
    assert list(stage.attempts().values()) == [0, 0]


@on_stage
async def test_what_the_service_ends_is_no_strike(stage: Stage) -> None:
    stage.queues.subscribe("q", max_deliver=1)
    (id_,) = await stage.store()
    for attempt, reason in enumerate((Goodbye.SHUTDOWN, Goodbye.CREDENTIAL_EXPIRED, None), 1):
        member = await stage.consumers.open(NS, "q", 1)
        assert ids(await member.next(5)) == [id_]
        if reason is not None:
            member.leave(reason)
        stage.consumers.close(member)
        await asyncio.sleep(0.1)
        assert stage.attempts() == ({} if reason is None else {id_: attempt})


@on_stage
async def test_what_could_not_be_told_to_anybody_was_not_delivered(stage: Stage) -> None:
    stage.queues.subscribe("q", ordering="none")
    await stage.store(count=2)
    pulled = await stage.consumers.pull(NS, "q", 1, 0)
    stage.consumers.take_back(pulled)
    stage.consumers.take_back(pulled._replace(deliveries=[]))
    member = await stage.consumers.open(NS, "q", 2)
    await asyncio.sleep(0.1)
    member.abandon()
    with pytest.raises(ConnectionResetError):
        await member.next(5)
    stage.consumers.close(member)
    await asyncio.sleep(0.1)
    assert list(stage.attempts().values()) == [0, 0]


@on_stage
async def test_a_pull_cut_off_while_the_claim_is_under_way_leaves_nothing(stage: Stage) -> None:
    stage.queues.subscribe("q")
    await stage.store()
    for step in ("claim", "claim, done"):
        stage.holds[step] = asyncio.Event()
        pulling = asyncio.create_task(stage.pull(wait_s=20))
        await asyncio.sleep(0.1)
        pulling.cancel()
        await asyncio.wait([pulling])
        stage.holds.pop(step).set()
        await asyncio.sleep(0.1)
        assert list(stage.attempts().values()) == [0]
    assert [d.attempt for d in await stage.pull()] == [1]


@on_stage
async def test_a_claim_under_way_at_the_stop_is_given_back(stage: Stage) -> None:
    stage.queues.subscribe("q")
    await stage.store()
    stage.holds["claim, done"] = asyncio.Event()
    member = await stage.consumers.open(NS, "q", 4)
    await asyncio.sleep(0.1)
    assert stage.queues.queues[1].leased()
    stopping = asyncio.create_task(stage.consumers.stop())
    await asyncio.sleep(0.1)
    assert not stopping.done()
    stage.holds["claim, done"].set()
    await stopping
    assert member.goodbye is Goodbye.SHUTDOWN
    assert list(stage.attempts().values()) == [0]


@on_stage
async def test_nobody_gets_in_while_it_stops(stage: Stage) -> None:
    stage.queues.subscribe("q")
    stage.holds["get"] = asyncio.Event()
    coming = [
        asyncio.create_task(stage.consumers.open(NS, "q", 1)),
        asyncio.create_task(stage.pull(wait_s=5)),
    ]
    await asyncio.sleep(0.1)
    stage.consumers.dismiss()
    stage.holds["get"].set()
    for error in await asyncio.gather(*coming, return_exceptions=True):
        assert isinstance(error, GaplessError)
        assert error.code is Code.UNAVAILABLE


@on_stage
async def test_there_is_room_for_so_many(stage: Stage) -> None:
    stage.queues.subscribe("q")
    few = stage.make(max_members=2)
    member = await few.open(NS, "q", 1)
    pulling = asyncio.create_task(few.pull(NS, "q", 1, 5))
    await asyncio.sleep(0.1)
    for refused in (few.open(NS, "q", 1), few.pull(NS, "q", 1, 0)):
        with pytest.raises(GaplessError) as error:
            await refused
        assert error.value.code is Code.RATE_LIMITED
    few.close(member)
    await few.open(NS, "q", 1)
    await pulling
    await few.stop()


@on_stage
async def test_whose_lease_was_settled_is_known_and_forgotten(stage: Stage) -> None:
    """Wherever it was settled, and however many streams there are."""
    stage.queues.subscribe("q", ordering="none")
    members = [await stage.consumers.open(NS, "q", 2) for _ in range(5)]
    await stage.store(count=10)
    dealt = [(member, delivery) for member in members for delivery in await member.next(2)]
    assert len(dealt) == len(members[0].group.holders) == 10
    stage.consumers.hear_settled([1], [receipt(delivery) for _, delivery in dealt[::2]])
    stage.consumers.hear_settled([1], [receipt(dealt[1][1])._replace(lease=99), Receipt(1, 99, 1)])
    assert [len(member.outstanding) for member in members] == [1] * 5
    stage.consumers.give_back(members[0], [dealt[1][1]])
    for member in members:
        stage.consumers.close(member)
    assert members[0].group.holders == {}


# --- who waits


@on_stage
async def test_a_pull_is_not_told_of_nothing_before_all_was_looked_at(stage: Stage) -> None:
    """A claim may stop at a bound of work, before it comes to the first message."""
    stage.queues.subscribe("q")
    (wanted,) = await stage.store()
    claim, claims = stage.port.claim, 0

    async def bounded(
        subscription_id: int, settled: int, limit: int, holder: int = 0, hands: Sequence[Hand] = ()
    ) -> Claimed:
        nonlocal claims
        claims += 1
        return (
            Claimed(more=True) if claims < 5 else await claim(subscription_id, settled, limit, holder, hands)
        )

    stage.port.claim = bounded  # type: ignore[method-assign]
    assert ids(await stage.pull()) == [wanted]


@on_stage
async def test_a_stalled_watermark_is_watched_without_claiming(stage: Stage) -> None:
    """Somebody publishes for seconds: nothing can be had meanwhile, so nothing is asked."""
    stage.queues.subscribe("q", "a", "b")
    slow = stage.log.begin([Append(NS, (NewMessage("a", b"{}"),))])
    await slow.lock()
    await slow.take()
    pulling = asyncio.create_task(stage.pull(wait_s=20))
    await asyncio.sleep(0.1)
    (fast,) = await stage.store("b")
    stage.consumers.hear(NS, "b", fast)
    before = stage.calls["claim"]
    await asyncio.sleep(4)
    assert stage.calls["claim"] - before <= 6
    slow.commit()
    await asyncio.wait([pulling], timeout=0.1)
    assert len(pulling.result()) == 2


async def _comes_once_it_is_settled(stage: Stage, ask: Callable[[], Awaitable[list[Delivery]]]) -> None:
    """What was committed before anybody asked comes as soon as those who published beside it are done."""
    slow = stage.log.begin([Append(NS, (NewMessage("beside", b"{}"),))])
    await slow.lock()
    await slow.take()
    (fast,) = await stage.store("b.x")
    stage.consumers.hear(NS, "b.x", fast)
    asking = asyncio.ensure_future(ask())
    await asyncio.sleep(0.1)
    assert not asking.done()
    slow.commit()
    await asyncio.wait([asking], timeout=0.05)
    assert asking.done(), "it waits for the sweep"
    assert ids(asking.result()) == [fast]


@on_stage
async def test_a_pull_on_channels_gets_what_came_before_it_once_that_is_settled(stage: Stage) -> None:
    stage.queues.subscribe("q", "a", "b.x")
    await _comes_once_it_is_settled(stage, lambda: stage.pull(wait_s=20))


@on_stage
async def test_a_pull_on_a_pattern_gets_what_came_before_it_once_that_is_settled(stage: Stage) -> None:
    stage.queues.subscribe("q", "b.>")
    await _comes_once_it_is_settled(stage, lambda: stage.pull(wait_s=20))


@on_stage
async def test_a_stream_gets_what_came_before_it_once_that_is_settled(stage: Stage) -> None:
    stage.queues.subscribe("q", "a", "b.x")

    async def stream() -> list[Delivery]:
        return await (await stage.consumers.open(NS, "q", 1)).next(20)

    await _comes_once_it_is_settled(stage, stream)


@on_stage
async def test_channels_that_are_added_bring_what_was_there_once_that_is_settled(stage: Stage) -> None:
    stage.queues.subscribe("q", "a")
    member = await stage.consumers.open(NS, "q", 1)
    await asyncio.sleep(0.1)

    async def widen() -> list[Delivery]:
        queue = stage.queues.queues[1]
        queue.subscription = replace(queue.subscription, channels=("a", "b.x"))
        stage.consumers.changed(NS, "q", 1)
        return await member.next(20)

    await _comes_once_it_is_settled(stage, widen)


@on_stage
async def test_what_is_due_by_time_comes_then(stage: Stage) -> None:
    stage.queues.subscribe("q", backoff=[0.3], ack_wait=0.7)
    await stage.store()
    (first,) = await stage.pull()
    await stage.consumers.nack(NS, "q", [receipt(first)], Nack())
    began = stage.loop.time()
    (second,) = await stage.pull(wait_s=5)
    assert 0.3 <= stage.loop.time() - began < 0.35
    (third,) = await stage.pull(wait_s=5)
    assert 1.0 <= stage.loop.time() - began < 1.1
    assert [d.attempt for d in (first, second, third)] == [1, 2, 3]


@on_stage
async def test_a_clock_that_is_ahead_does_not_make_it_restless(stage: Stage) -> None:
    now_us = stage.log.now_us
    ahead = stage.make()
    ahead._deps = replace(ahead._deps, now_us=lambda: now_us() + 400_000)
    stage.queues.subscribe("q", ack_wait=0.5)
    await stage.store()
    await ahead.pull(NS, "q", 1, 0)
    before = stage.calls["claim"]
    assert (await ahead.pull(NS, "q", 1, 5))[1]
    assert stage.calls["claim"] - before < 50
    await ahead.stop()


# --- what fails


@on_stage
async def test_a_database_that_is_away_is_told_of_and_waited_for(stage: Stage) -> None:
    stage.queues.subscribe("q")
    member = await stage.consumers.open(NS, "q", 1)
    stage.errors["claim"] = GaplessError(Code.UNAVAILABLE, "away")
    with pytest.raises(GaplessError, match="away"):
        await stage.pull(wait_s=10)
    before = stage.calls["claim"]
    await asyncio.sleep(5)
    assert 5 < stage.calls["claim"] - before < 15
    (id_,) = await stage.store()
    stage.errors.clear()
    assert ids(await member.next(2)) == [id_]


@on_stage
async def test_an_error_nobody_foresaw_ends_nothing_and_spins_nothing(stage: Stage) -> None:
    stage.queues.subscribe("q")
    member = await stage.consumers.open(NS, "q", 1)
    stage.errors["claim"] = RuntimeError("a bug")
    with pytest.raises(GaplessError, match="claiming failed"):
        await stage.pull(wait_s=10)
    before = stage.calls["claim"]
    await asyncio.sleep(5)
    assert stage.calls["claim"] - before < 15
    (id_,) = await stage.store()
    stage.errors.clear()
    assert ids(await member.next(2)) == [id_]


@on_stage
async def test_a_release_that_fails_is_tried_again(stage: Stage) -> None:
    stage.queues.subscribe("q")
    await stage.store()
    member = await stage.consumers.open(NS, "q", 1)
    await member.next(5)
    stage.errors["release"] = GaplessError(Code.UNAVAILABLE, "away")
    stage.consumers.close(member)
    await asyncio.sleep(endings.RETRY_S / 2)
    stage.errors.clear()
    await asyncio.sleep(endings.RETRY_S)
    assert list(stage.attempts().values()) == [1]


# --- what changes


@on_stage
async def test_other_processes_are_told_of_a_change_though_nobody_waits_here(stage: Stage) -> None:
    subscription = stage.queues.subscribe("q")
    stage.consumers.changed(NS, "q", subscription.id)
    await stage.consumers.find(NS, "q")
    stage.consumers.changed(NS, "q")
    assert stage.told == [([1], []), ([1], [])]


@on_stage
async def test_a_change_of_a_whole_namespace_is_one_hint(stage: Stage) -> None:
    for name in ("a", "b", "c"):
        stage.queues.subscribe(name)
        await stage.consumers.open(NS, name, 1)
    await asyncio.sleep(0.1)
    seen = Counter(stage.calls)
    stage.consumers.changed_all(NS)
    stage.consumers.changed_all("another")
    assert stage.told == [([1, 2, 3], []), ([], [])]
    await asyncio.sleep(0.1)
    assert stage.calls["claim"] - seen["claim"] == 3


@on_stage
async def test_a_stream_has_room_again_when_all_was_forgotten(stage: Stage) -> None:
    """As after a seek: the leases are gone, and nobody acked."""
    stage.queues.subscribe("q", ordering="none")
    await stage.store(count=6)
    member = await stage.consumers.open(NS, "q", 4)
    assert len(await member.next(5)) == 4
    queue = stage.queues.queues[1]
    queue.rows.clear()
    queue.frontier = 0
    stage.consumers.changed(NS, "q")
    assert len(await member.next(0.1)) == 4


@on_stage
async def test_a_deleted_subscription_says_goodbye_and_its_name_may_be_used_again(stage: Stage) -> None:
    stage.queues.subscribe("q")
    member = await stage.consumers.open(NS, "q", 1)
    pulling = asyncio.create_task(stage.pull(wait_s=10))
    await asyncio.sleep(0.1)
    stage.queues.delete("q")
    stage.consumers.changed(NS, "q")
    assert await member.next(0.1) == []
    assert member.goodbye is Goodbye.SUBSCRIPTION_DELETED
    with pytest.raises(GaplessError) as error:
        await pulling
    assert error.value.code is Code.SUBSCRIPTION_NOT_FOUND
    again = stage.queues.subscribe("q")
    (id_,) = await stage.store()
    pulled = await stage.consumers.pull(NS, "q", 1, 0)
    assert (pulled.subscription.id, ids(pulled.deliveries)) == (again.id, [id_])
