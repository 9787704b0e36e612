"""A storm: publishers, members that make errors and crash, a service whose parts are killed, and the
verdict."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from load.api import Api
from load.drill import say
from load.groups import notes, plan
from load.groups.books import Books, Ledger
from load.groups.checker import check
from load.groups.collect import collect
from load.groups.crowd import Crowd
from load.groups.faults import Faults
from load.groups.history import SECOND, Groups
from load.groups.plan import CREWS, Errand, Temper
from load.groups.publisher import Publisher
from load.groups.sabotage import sabotage
from load.server import Server
from load.verdict import Breach, Verdict
from load.wire import Target


@dataclass(slots=True)
class Storm:
    """One run. `server` is None if the run did not start the service: then only members fail."""

    options: argparse.Namespace
    home: Path
    target: Target
    server: Server | None
    history: Groups = field(init=False)
    api: Api = field(init=False)
    crowd: Crowd = field(init=False)
    publisher: Publisher = field(init=False)
    ledger: Ledger = field(init=False)
    until_ns: int = 0

    def __post_init__(self) -> None:
        groups = {crew.group.name: crew.group for crew in CREWS}
        self.history = Groups(self.options.seed, groups=groups)

    async def run(self) -> Verdict:
        """Run everything. Raises RuntimeError if there is no verdict."""
        chance = random.Random(self.options.seed)
        self.api = Api(self.target)
        if self.server is not None:
            self.server.start()
            say(f"seed {self.options.seed}; service ready after {await self.server.wait_ready():.1f} s")
        for group in self.history.groups.values():
            await self.api.call("PUT", f"/v1/subscriptions/{group.name}", plan.definition(group))
        self.publisher = Publisher(self.api, random.Random(chance.random()), self.options.rate)
        self.ledger = Ledger(self.api, self.publisher, list(self.history.groups.values()))
        self.until_ns = time.monotonic_ns() + int(self.options.minutes * 60 * SECOND)
        self.crowd = Crowd(self._errands(), random.Random(chance.random()))
        self.crowd.start()
        try:
            stuck = await self._blow(random.Random(chance.random()))
        finally:
            self.crowd.stop()
        return await self._judge(stuck)

    def _errands(self) -> list[Errand]:
        temper, now = Temper(crash=self.options.crash), time.monotonic_ns()
        names = list(self.history.groups)
        return [
            Errand(0, f"{crew.group.name}/{n}", crew.group.name, names[at - 1], face, crew.limit,
                   self.target, str(self.home / "notes"), 0, temper, now, self.until_ns)
            for at, crew in enumerate(CREWS) for n, face in enumerate(crew.faces)
        ]  # fmt: skip

    async def _blow(self, chance: random.Random) -> dict[str, int]:
        """Publish and disturb until the time is over, then wait until everything is settled. Returns the
        number of unsettled messages of each subscription."""
        calm = asyncio.Event()
        publishing = asyncio.create_task(self.publisher.run(calm))
        books = None if self.server is None else Books(self.server)
        loops = [self.ledger.run(), self.crowd.torment(self.options.torment)]
        if self.server is not None and books is not None:
            loops.append(books.run())
            if self.options.sabotage:
                loops.append(sabotage(self.server, self.options.sabotage))
        around = [asyncio.create_task(loop) for loop in loops]
        try:
            await self._break_things(chance)
            calm.set()
            await publishing
            say(self._summary())
            return await self._settle()
        finally:
            for task in (publishing, *around):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            self.history.readings += books.readings if books else []

    async def _break_things(self, chance: random.Random) -> None:
        """Kill parts of the service. Returns when the time is over and the last killed part is back."""
        if self.server is not None:
            faults = Faults(self.server, chance, self.options.fault_every)
            try:
                await faults.run(self.until_ns)
            finally:
                self.history.faults = faults.found
        await asyncio.sleep(max(0.0, (self.until_ns - time.monotonic_ns()) / 1e9))

    def _summary(self) -> str:
        seen = "".join(f", {count:,} {what}" for what, count in sorted(self.crowd.seen.items()))
        return f"{self.publisher.numbers:,} messages published, {self.crowd.lives:,} lives of members{seen}"

    async def _settle(self) -> dict[str, int]:
        """Wait until the counts show nothing unsettled, then a moment longer for wrong deliveries."""
        started = time.monotonic()
        deadline = started + self.options.patience
        self.ledger.latest.clear()
        while sum(self.ledger.left.values()) and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        left = sum(self.ledger.left.values())
        said = f"{left:,} not settled" if left else "everything settled"
        say(f"{said} {time.monotonic() - started:.1f} s after the last fault and publish")
        await asyncio.sleep(2.5)
        return {name: left for name, left in self.ledger.left.items() if left}

    async def _judge(self, stuck: dict[str, int]) -> Verdict:
        if self.crowd.broken:
            raise RuntimeError("; ".join(self.crowd.broken[:3]))
        history = self.history
        await self.ledger.close()
        await collect(self.api, history)
        self.api.close()
        history.publishes = self.publisher.tries
        history.readings += self.ledger.readings
        history.pauses += self.crowd.pauses
        notes.read(self.home / "notes", history, self.crowd.killed)
        history.stuck = list(stuck)
        verdict = check(history)
        for name, left in stuck.items():
            verdict.add(Breach.STUCK, f"{name}: {left} not settled after {self.options.patience:.0f} s")
        return verdict
