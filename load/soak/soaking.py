"""One run: publishes for the given time, lets all readers catch up, and gives the verdict."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass

from load.drill import say
from load.server import Server, serving
from load.soak.publishers import Publishers
from load.soak.readers import QUEUES, STREAMS, Queue, Reader, of
from load.soak.spark import Spark
from load.verdict import USUAL, Breach, Verdict
from load.waiting import PATIENCE_S

TELL_S = 5.0
LOOK_S = 0.5
PAUSE_OF_LOOKS_S = 0.05
"""The slowest reader is looked for at most this often, because publishers ask before each batch."""
_REGRESSIONS = re.compile(rb"^gapless_watermark_regressions_total (\S+)$", re.MULTILINE)
PLAIN = """
create or replace function gapless_internal.last_id() returns bigint language sql volatile as
    'select last_value from gapless.message_id'
"""
"""A control: reads the last id without a lock on the sequence's page. For a moment that page shows an id that
is not taken yet."""
AHEAD = """
create or replace function gapless_internal.last_id() returns bigint language sql volatile as
    'select last_value + case when random() * {one_in} < 1 then log_cnt else 0 end from gapless.message_id'
"""
"""A control: returns that id in one of `one_in` readings. With a plain reading this is far rarer."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of a run. `control`: one in so many readings of the last id is ahead; 0: all are without
    the lock; None: no control."""

    seconds: float
    workers: int = 2
    readers: int = 2
    members: int = 2
    publishers: int = 2
    voids: int = 1
    ahead: int = 50_000
    spark: str = "query"
    control: int | None = None


TOLD = (*USUAL, Breach.REGRESSED)


class Soak:
    """The service and all clients of one run."""

    def __init__(self, server: Server, plan: Plan) -> None:
        self.server, self.plan = server, plan
        target = server.target
        streams = [patterns for patterns in STREAMS for _ in range(plan.readers)]
        self.readers = [Reader(target, number, patterns) for number, patterns in enumerate(streams, 1)]
        self.queues = [Queue(target, number, patterns) for number, patterns in enumerate(QUEUES, 1)]
        self.spark: Spark | None = None
        self.publishers = Publishers(server, self.slowest, plan.ahead)
        self.regressions = 0
        self.odd: list[str] = []
        self._took_s = 0.0
        self._looked_at: tuple[float, int] = (0.0, 0)
        self._began = 0.0

    def _sides(self) -> list[Reader | Queue | Spark]:
        return [*self.readers, *self.queues, *([self.spark] if self.spark else [])]

    def slowest(self) -> int:
        """How many of all published messages the slowest reader has, counting those it did not ask for."""
        at, found = self._looked_at
        if time.monotonic() - at > PAUSE_OF_LOOKS_S:
            found = min(self._positions())
            self._looked_at = time.monotonic(), found
        return found

    def _positions(self) -> list[int]:
        """For each reader, how many of all published messages it has, counting those it did not ask for."""
        published = self.publishers.published
        sides = [(one.patterns, one.proof.taken) for one in self._sides()]
        confirmed = self.publishers.confirmed
        return [published - sum(confirmed[c] for c in of(patterns)) + taken for patterns, taken in sides]

    async def run(self) -> Verdict:
        """Run everything. Returns the verdict."""
        for queue in self.queues:
            await queue.make()
        if self.plan.control is not None:
            session = await self.server.connect()
            await session.execute(AHEAD.format(one_in=self.plan.control) if self.plan.control else PLAIN)
            await session.close()
        if self.plan.spark != "none":
            self.spark = Spark(self.plan.spark, self.server.postgres_url(), self.server.home / "spark.log")
            await self.spark.wait_ready()
        publishing = [self.publishers.rest, self.publishers.sql]
        writers = [asyncio.create_task(write()) for write in publishing for _ in range(self.plan.publishers)]
        writers += [asyncio.create_task(self.publishers.void()) for _ in range(self.plan.voids)]
        others = [asyncio.create_task(reader.run()) for reader in self.readers]
        others += [
            asyncio.create_task(queue.work()) for queue in self.queues for _ in range(self.plan.members)
        ]
        try:
            await self._watch(writers, others)
            return await self._verdict()
        finally:
            for task in (*writers, *others):
                task.cancel()
            await asyncio.gather(*writers, *others, return_exceptions=True)
            if self.spark:
                self.spark.stop()

    async def _watch(self, writers: list[asyncio.Task[None]], others: list[asyncio.Task[None]]) -> None:
        """Watch the run until its time is over and all readers have everything, or for `PATIENCE_S` none gets
        anything more; for a tenth of it if a breach was found already."""
        began = self._began = told = moved = time.monotonic()
        given = 0
        while True:
            await asyncio.sleep(LOOK_S)
            now = time.monotonic()
            failed = [task for task in (*writers, *others) if task.done() and task.exception() is not None]
            self.odd = [f"a part of the run failed: {task.exception()!r}" for task in failed]
            await self._count_regressions()
            # After a failure the run cannot become clean, so it stops early.
            odd = bool(failed) or any(one.odd for one in self._sides())
            if (odd or now - began >= self.plan.seconds) and not self.publishers.stopping:
                self.publishers.stop()
                await asyncio.gather(*writers, return_exceptions=True)
                self._took_s = now - began
            if now - told >= TELL_S:
                told = now
                say(self._line(now - began))
            lags = [self.publishers.published - one for one in self._positions()]
            if sum(lags) != given:
                given, moved = sum(lags), now
            if self.publishers.stopping and (
                not any(lags) or now - moved > PATIENCE_S / (10 if odd or self.regressions else 1)
            ):
                return

    def _line(self, seconds: float) -> str:
        published, lags = self.publishers.published, self._positions()
        broken = sum(not one.proof.verdict.ok for one in self._sides())
        return (
            f"{seconds:6.0f} s of {self.plan.seconds:.0f}: {published:,} published "
            f"({published / seconds:,.0f}/s), the slowest is {published - min(lags):,} behind, "
            f"{broken} broken, {self.regressions} regressions"
        )

    async def _count_regressions(self) -> None:
        answer = await self.server.get("/metrics", PATIENCE_S)
        found = _REGRESSIONS.search(answer.body) if answer is not None else None
        if found is None:
            raise RuntimeError(f"/metrics says nothing of regressions: {answer}")
        self.regressions = max(self.regressions, round(float(found[1])))

    async def _verdict(self) -> Verdict:
        """Compare the readers with the log, and the log with the confirmed messages."""
        confirmed = self.publishers.confirmed
        took_s = self._took_s or time.monotonic() - self._began
        await asyncio.sleep(2 * LOOK_S)  # workers report their counters once a second
        await self._count_regressions()
        heads = await self._heads()
        verdict = Verdict(TOLD, f"{confirmed.total():,} messages published in {took_s:,.0f} s")
        verdict.add(Breach.REGRESSED, "the watermark went back", self.regressions)
        if heads != dict(confirmed):
            verdict.add(Breach.FAILED, f"the log holds {heads}, confirmed were {dict(confirmed)}")
        for text in self.odd:
            verdict.add(Breach.FAILED, text)
        for one in self._sides():
            say(f"{one.proof.name}: {one.proof.taken:,} taken")
            verdict.include(one.proof.finish({channel: heads[channel] for channel in of(one.patterns)}))
            for text in one.odd:
                verdict.add(Breach.FAILED, text)
        if not confirmed:
            raise RuntimeError("nothing was published")
        return verdict

    async def _heads(self) -> dict[str, int]:
        session = await self.server.connect()
        rows = await session.fetch("select name, last_seq from gapless.channels where name like 'soak.%'")
        await session.close()
        return {str(row["name"]): int(row["last_seq"]) for row in rows}


async def soak(plan: Plan) -> Verdict:
    """Run a plan on a new service."""
    async with serving(workers=str(plan.workers)) as server:
        return await Soak(server, plan).run()
