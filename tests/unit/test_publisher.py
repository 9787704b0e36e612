"""Group commit: what shares a transaction and what must not, the bounds, and what callers are told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from subscriptions.domain.errors import Code, GaplessError, UnreachableError
from subscriptions.domain.model import Append, Appended, NewMessage
from subscriptions.engine import publisher as module
from subscriptions.engine.entry import Entry
from subscriptions.engine.hints import ChannelHint
from subscriptions.engine.publisher import Publisher
from tests.contract.conftest import request
from tests.contract.memory import MemoryAppender
from tests.contract.memory_log import MemoryLog
from tests.sim.loop import run
from tests.sim.world import encode


class Recorder(MemoryAppender):
    """Remembers the batches; each takes a second."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.batches: list[list[Append]] = []
        self.fails: Exception | None = None

    async def append(self, batch: Sequence[Append]) -> list[Appended | GaplessError]:
        self.batches.append(list(batch))
        await asyncio.sleep(1)
        if self.fails is not None:
            raise self.fails
        return await super().append(batch)


class Bench:
    def __init__(self) -> None:
        self.log = MemoryLog()
        self.appender = Recorder(self.log)
        self.told: list[tuple[ChannelHint, list[Entry]]] = []
        self.publisher = Publisher([self.appender], encode, self.told.extend)
        self.publisher.start()

    async def publish(self, *requests: Append) -> list[Appended | BaseException]:
        """The first alone, so that the rest gather behind it."""
        first = asyncio.create_task(self.publisher.publish(request("first")))
        await asyncio.sleep(0.5)
        rest = asyncio.gather(*(self.publisher.publish(r) for r in requests), return_exceptions=True)
        await first
        return await rest

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.appender.batches]


@pytest.mark.parametrize(
    ("requests", "sizes"),
    [
        ([request("a")] * 5, [1, 5]),
        ([request("a", key="k"), request("a"), request("b", key="k"), request("c")], [1, 2, 2]),
        ([request("a", key="k"), request("b", key="j")], [1, 2]),
        ([request("a", expected=0), request("a", expected=1), request("a")], [1, 1, 2]),
        ([request("a"), request("a", expected=1), request("b", expected=0)], [1, 1, 2]),
        ([request("a"), request("b", expected=0), request("a")], [1, 3]),
        ([request("a"), request("b", "a", expected=0)], [1, 1, 1]),
    ],
)
def test_what_shares_a_batch(requests: list[Append], sizes: list[int]) -> None:
    async def program() -> None:
        bench = Bench()
        answers = await bench.publish(*requests)
        assert bench.sizes == sizes
        assert all(isinstance(answer, Appended) for answer in answers), answers

    run(program())


def test_batches_are_bounded_and_a_large_request_goes_alone() -> None:
    async def program() -> None:
        bench = Bench()
        many = request(*["a"] * (module.MAX_BATCH_MESSAGES - 1))
        large = Append("default", (NewMessage("a", b"x" * (module.MAX_BATCH_BYTES + 1)),))
        await bench.publish(many, request("a"), request("a"), large, request("a"))
        assert bench.sizes == [1, 2, 1, 1, 1]
        await bench.publish(*[request("a")] * (module.MAX_BATCH_REQUESTS + 1))
        assert bench.sizes[-2:] == [module.MAX_BATCH_REQUESTS, 1]

    run(program())


def test_too_many_are_refused_and_nothing_is_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED", 3)

    async def program() -> None:
        bench = Bench()
        answers = await bench.publish(*[request("a")] * 5)
        refused = [answer for answer in answers if isinstance(answer, GaplessError)]
        assert [error.code for error in refused] == [Code.RATE_LIMITED] * 2
        assert (bench.publisher.waiting, bench.publisher._queued_bytes) == (0, 0)

    run(program())


class Pair:
    """Two appenders of one publisher."""

    def __init__(self) -> None:
        self.appenders = [Recorder(log := MemoryLog()), Recorder(log)]
        self.publisher = Publisher(self.appenders, encode, lambda committed: None)
        self.publisher.start()

    def submit(self, count: int) -> list[asyncio.Future[Appended]]:
        return [self.publisher.submit(request("a")) for _ in range(count)]

    @property
    def sizes(self) -> list[int]:
        """Of the batches of both; at any moment at most two are under way."""
        return sorted(len(batch) for appender in self.appenders for batch in appender.batches)


def test_few_wait_for_a_larger_transaction_and_share_the_next() -> None:
    async def program() -> None:
        pair = Pair()
        first = pair.submit(5)
        await asyncio.sleep(1 - module.HOLD_S / 2)
        rest = [*pair.submit(2)]
        await asyncio.sleep(0)
        assert pair.sizes == [5]
        rest += pair.submit(2)
        await asyncio.gather(*first)
        await asyncio.gather(*rest)
        assert pair.sizes == [4, 5]

    run(program())


@pytest.mark.parametrize("count", [1, 5])
def test_as_many_as_are_under_way_do_not_wait(count: int) -> None:
    async def program() -> None:
        pair = Pair()
        first = pair.submit(count)
        await asyncio.sleep(0.001)
        rest = pair.submit(count)
        await asyncio.sleep(0.001)
        assert pair.sizes == [count, count]
        await asyncio.gather(*first, *rest)

    run(program())


def test_a_transaction_that_hangs_does_not_hold_the_others_back() -> None:
    async def program() -> None:
        pair = Pair()
        first = pair.submit(5)
        await asyncio.sleep(0.001)
        rest = pair.submit(1)
        await asyncio.sleep(2 * module.HOLD_S)
        assert pair.sizes == [1, 5]
        await asyncio.gather(*first, *rest)

    run(program())


def test_a_caller_who_leaves_takes_nothing_back() -> None:
    async def program() -> None:
        bench = Bench()
        leaving = asyncio.create_task(bench.publisher.publish(request("a")))
        staying = asyncio.create_task(bench.publisher.publish(request("a")))
        await asyncio.sleep(0.5)
        leaving.cancel()
        assert (await staying).positions[0].seq == 2
        assert [len(entries) for _, entries in bench.told] == [2], "whoever listens hears of both"

    run(program())


@pytest.mark.parametrize("error", [GaplessError(Code.STORAGE_FULL, "full"), RuntimeError("a bug")])
def test_a_failed_batch_fails_its_callers_and_no_others(error: Exception) -> None:
    async def program() -> None:
        bench = Bench()
        bench.appender.fails = error
        with pytest.raises(GaplessError):
            await bench.publisher.publish(request("a"))
        bench.appender.fails = None
        assert (await bench.publisher.publish(request("a"))).positions[0].seq == 1

    run(program())


def test_one_refused_request_leaves_its_batch_alone() -> None:
    async def program() -> None:
        bench = Bench()
        answers = await bench.publish(request("b"), request("a", expected=7), request("a"))
        assert [isinstance(answer, Appended) for answer in answers] == [True, False, True]

    run(program())


def test_stopping_answers_what_waits_and_takes_no_more() -> None:
    async def program() -> None:
        bench = Bench()
        waiting = [asyncio.create_task(bench.publisher.publish(request("a"))) for _ in range(3)]
        await asyncio.sleep(0.5)
        stopping = asyncio.create_task(bench.publisher.stop())
        await asyncio.sleep(0)
        with pytest.raises(GaplessError) as refused:
            await bench.publisher.publish(request("a"))
        assert refused.value.code is Code.UNAVAILABLE
        await stopping
        assert [task.result().positions[0].seq for task in waiting] == [1, 2, 3]

    run(program())


def test_hints_tell_what_came_before_and_leave_replays_out() -> None:
    async def program() -> None:
        bench = Bench()
        await bench.publish(request("a", "b", key="k"), request("a"))
        await bench.publisher.publish(request("a", "b", key="k"))
        hints = {hint.channel: hint for hint, _ in bench.told}
        assert len(bench.told) == 3
        assert (hints["a"].after_id, hints["a"].after_seq) == (0, 0)
        assert [(copy.id, copy.seq) for copy in hints["a"].copies] == [(2, 1), (4, 2)]
        assert [(copy.id, copy.seq) for copy in hints["b"].copies] == [(3, 1)]

    run(program())


def test_who_waited_behind_a_database_that_is_away_is_told_with_those_who_were_tried() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.appender.fails = UnreachableError("silent")
        loop = asyncio.get_running_loop()
        told: list[tuple[str, float]] = []

        async def publish(name: str, at: float) -> None:
            await asyncio.sleep(at)
            with pytest.raises(UnreachableError):
                await bench.publisher.publish(request(name))
            told.append((name, loop.time()))

        began = loop.time()
        await asyncio.gather(publish("tried", 0), publish("waited", 0.2), publish("came late", 0.8))
        assert sorted((name, round(at - began, 1)) for name, at in told) == [
            ("came late", 2.0),
            ("tried", 1.0),
            ("waited", 1.0),
        ]
        assert bench.sizes == [1, 1]

    run(scenario())
