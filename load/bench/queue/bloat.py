"""Millions of messages through one subscription while somebody pins the oldest snapshot: what it leaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import asyncpg
import msgspec

from load.bench.queue import ours
from load.bench.queue.backlog import CHANNEL, Flow, publish
from load.bench.queue.crew import Crew, crew
from load.bench.queue.samples import Look, Phases, largest, pin_now, words
from load.drill import RESULTS, say
from load.figure import Figure, UnfitError
from load.server import Server, serving

MESSAGES, PIN_S = 5_000_000, 180.0
SHORT_MESSAGES, SHORT_PIN_S = 400_000, 8.0

MEMBERS = 4
WARM_S = 5.0
STALL_S = 60.0
RECOVERY_S = 90.0
"""How long the tables may take to come back after the last ack."""

GOAL_P99 = 1.5
GOAL_GROWTH = 4.0
GOAL_MIB = 32.0
NO_GOAL = float("inf")
SMALLEST = 2**20
"""A start below so many bytes counts as this: a few pages are no order of magnitude."""

SERIES = RESULTS / "bloat.json"

LOG = (
    "channels",
    "deleted_channels",
    "idempotency",
    "lives",
    "log",
    "migrations",
    "namespaces",
    "outbox",
    "segments",
    "trims",
)
"""What was there before subscriptions. All else is the queue's, so that no table of it can be forgotten."""

TABLES = """
select c.relname as name, pg_total_relation_size(c.oid) as size, pg_stat_get_dead_tuples(c.oid) as dead
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'gapless' and c.relkind = 'r' and c.relname <> all ($1) and c.relname not like 'messages%'
"""
STORED = "select count(*), sum(id)::bigint from gapless.messages"


@contextlib.asynccontextmanager
async def pinned(server: Server) -> AsyncIterator[None]:
    """A transaction with a snapshot and an id of its own: no row that dies meanwhile can be taken away."""
    session = await server.connect()
    await session.execute("set idle_in_transaction_session_timeout = 0")
    await session.execute("begin isolation level repeatable read")
    await session.fetchval("select txid_current()")
    try:
        yield
    finally:
        await session.execute("rollback")
        await session.close()


@dataclass(slots=True)
class Run:
    """One run. Times count from its start, in seconds."""

    server: Server
    session: asyncpg.Connection
    messages: int
    pin_s: float
    flow: Flow = field(default_factory=Flow)
    begun: float = 0.0
    ended: float = 0.0
    stop: float = 0.0

    async def look(self) -> Look:
        """At the queue's tables, now; every tenth look is told."""
        rows = await self.session.fetch(TABLES, list(LOG))
        sizes = {row["name"]: row["size"] for row in rows}
        dead = sum(row["dead"] for row in rows)
        seen = Look(self.flow.now(), sizes, dead, self.flow.acked)
        self.flow.record.looks.append(seen)
        if len(self.flow.record.looks) % 10 == 0:
            pin = ", pinned" if self.begun and not self.ended else ""
            say(f"bloat, {words(self.flow.record, seen)}{pin}")
        return seen

    async def drive(self) -> None:
        """Publish and consume all of it, with the pin in the middle."""
        name = await ours.subscribe(self.server, CHANNEL, "key")
        async with crew(ours.commands(self.server, name, MEMBERS), self.flow.hear) as workers:
            self.flow.start()
            workers.go()
            publisher = asyncio.create_task(publish(self.server, self.flow, self.messages))
            try:
                await self._watch(workers, publisher)
            finally:
                publisher.cancel()
            self.stop = self.flow.now()
            workers.stop()
            reports = await workers.reports(60.0)
        row = await self.session.fetchrow(STORED)
        stored = (row["count"], row["sum"]) if row else None
        told = sum(report["done"] for report in reports), sum(report["sum"] for report in reports)
        if stored != told or told[0] != self.messages:
            raise UnfitError(f"{self.messages} messages, stored (count, sum of ids) {stored}, acked {told}")
        if not self.ended:
            raise UnfitError("the messages ran out before the pin ended: ask for more of them")
        await self._recover()
        await ours.settle_up(self.server, name, self.messages)

    async def _watch(self, workers: Crew, publisher: asyncio.Task[None]) -> None:
        """Look every second until all is acked; pin and unpin when it is time."""
        moved = (0, 0.0)
        async with contextlib.AsyncExitStack() as pin:
            while self.flow.acked < self.messages:
                await self.flow.second()
                seen = await self.look()
                moved = moved if seen.acked == moved[0] else (seen.acked, seen.at)
                if publisher.done():
                    publisher.result()
                if not workers.running() or seen.at - moved[1] > STALL_S:
                    return  # what is missing is told by the reports
                if not self.begun and pin_now(seen.at, seen.acked, self.messages, self.pin_s, WARM_S):
                    await pin.enter_async_context(pinned(self.server))
                    self.begun = self.flow.now()
                elif self.begun and not self.ended and seen.at - self.begun >= self.pin_s:
                    await pin.aclose()
                    self.ended = self.flow.now()

    async def _recover(self) -> None:
        """Look on until the tables are small again, or for as long as that may take."""
        while self.flow.now() < self.stop + RECOVERY_S:
            seen = await self.look()
            if seen.bytes <= self.phases().most_bytes(GOAL_GROWTH, GOAL_MIB):
                return
            await self.flow.second()

    def phases(self) -> Phases:
        """The run cut into before, during and after the pin."""
        return Phases(self.flow.record, WARM_S, self.begun, self.ended, self.stop, SMALLEST)


def figures(run: Run) -> list[Figure]:
    """Claims before and after; sizes at the start and at the end; and the rates for comparison."""
    phases, last = run.phases(), run.flow.record.looks[-1]
    before, during, after = phases.p99_ms()
    start, most, end = phases.start_bytes(), phases.peak_bytes(), last.bytes
    slow, quick = phases.rates()
    mib = 2**20
    pin_s = run.ended - run.begun
    held = f"{run.messages:,} acked once each; while pinned for {pin_s:.0f} s {during:.1f} ms"
    came = (
        f"{last.at - run.stop:.0f} s after the last ack; at most {most / mib:.1f} MiB: {largest(last.sizes)}"
    )
    return [
        Figure("bloat, claim p99 after the pin", after, before, "ms", after / before, GOAL_P99, False, held),
        Figure(
            "bloat, size at the end", end / mib, start / mib, "MiB", end / start, GOAL_GROWTH, False, came
        ),
        Figure("bloat, size", end / mib, None, "MiB", end / mib, GOAL_MIB, False, came),
        Figure(
            "bloat, rate after the pin",
            quick,
            slow,
            "acked/s",
            quick / slow,
            NO_GOAL,
            False,
            "for comparison",
        ),
    ]


async def run(short: bool, messages: int | None = None, pin_s: float | None = None) -> list[Figure]:
    """One run; the series of what was seen each second is kept in `load/results/bloat.json`."""
    async with serving() as server:
        session = await server.connect()
        chosen = messages or (SHORT_MESSAGES if short else MESSAGES)
        one = Run(server, session, chosen, pin_s or (SHORT_PIN_S if short else PIN_S))
        try:
            await one.drive()
        finally:
            await session.close()
            SERIES.parent.mkdir(exist_ok=True)
            SERIES.write_bytes(msgspec.json.encode(one.flow.record.series()))
    return figures(one)
