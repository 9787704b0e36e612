"""One round: fills the topology, stops everything for longer than the ttl, starts it under load, and
checks."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from load.api import Api, RefusedError, UnreachableError
from load.drill import say
from load.restart.books import count, read_api, read_database
from load.restart.checker import TOLD, check
from load.restart.figures import Figures
from load.restart.installation import NAMESPACES, Fault, Installation
from load.restart.plan import CHAIN_END, END, Plan, Request, Variant
from load.restart.traffic import RETRY_S, Traffic
from load.restart.world import World
from load.verdict import Breach, Verdict

LOADED = 10
"""One in so many messages is published during the start, in small requests."""
SMALL_BATCH = 20
DELAYS_S = {"left": 2.0, "right": 5.0}
"""How long the services take to load their definitions if that is slow, with a difference between them."""
LOOK_S = 0.5
AFTER_S = 2.0
"""How long the round waits for wrong messages after all have arrived."""


@dataclass(slots=True)
class Round:
    """One round. `loop` and `chain`: the numbers of messages for each of the two subscriptions, and for the
    chain. `patience_s`: the time in which everything must arrive after the start."""

    home: Path
    plan: Plan
    loop: int
    chain: int
    chance: random.Random
    patience_s: float
    installation: Installation = field(init=False)
    traffic: list[Traffic] = field(init=False)
    figures: Figures = field(default_factory=Figures)

    def __post_init__(self) -> None:
        self.installation = Installation(self.home)
        self.traffic = [Traffic(Api(server.target)) for server in self.installation.servers]

    async def run(self) -> Verdict:
        """Run everything. Raises RuntimeError and RefusedError if there is no verdict."""
        await self.installation.start()
        await self._everywhere(self._define)
        await self._everywhere(self._fill)
        killed_at = await self._outage(time.monotonic())
        loading = asyncio.create_task(self._everywhere(self._load))
        self.figures.ready_s = await self.installation.start()
        self.figures.ready_at = time.time()
        await loading
        verdict = Verdict(TOLD)
        try:
            async with asyncio.timeout(self.patience_s):
                await self._everywhere(self._turn)
                await self._everywhere(self._arrive)
        except TimeoutError:
            verdict.add(Breach.STUCK, f"not all had arrived after {self.patience_s:.0f} s")
        await asyncio.sleep(AFTER_S)
        for namespace, traffic in zip(NAMESPACES, self.traffic, strict=True):
            world = await self._world(namespace, traffic)
            self._refuse_early(world, killed_at)
            verdict.include(check(self.plan, world), namespace)
        return verdict

    async def _everywhere(self, step: Callable[[Traffic], Awaitable[None]]) -> None:
        """Do a step in both namespaces at once."""
        await asyncio.gather(*(step(traffic) for traffic in self.traffic))

    # --- before

    async def _define(self, traffic: Traffic) -> None:
        for request in self.plan.before():
            await _done(traffic.api, request)

    def _parts(self) -> dict[str, tuple[list[str], list[str]]]:
        """By channel: the names to publish before the outage, and those to publish during the start."""
        parts = {}
        for channel, number in (("loop.a", self.loop), ("loop.b", self.loop), ("hop.0", self.chain)):
            names = [f"{channel}:{n}" for n in range(number)]
            late = number // LOADED
            parts[channel] = (names[: number - late], names[number - late :])
        return parts

    async def _fill(self, traffic: Traffic) -> None:
        ttl_s = self.plan.own_ttl_s if self.plan.variant is Variant.FILE else None
        parts = self._parts()
        await asyncio.gather(*(traffic.publish(channel, parts[channel][0], ttl_s) for channel in parts))

    async def _outage(self, filled_at: float) -> float:
        """Kill everything at a random moment, and wait. Returns the time of the kill in seconds since
        1970."""
        await asyncio.sleep(self.chance.uniform(0.0, self.plan.ttl_s / 2))
        fault = self.chance.choice(list(Fault))
        self.installation.kill(fault)
        killed_at, until = time.time(), time.monotonic() + self.plan.ttl_s
        if (document := self.plan.file()) is not None:
            self._slow_down(document)
            until = max(until, filled_at + self.plan.own_ttl_s)
        self.figures.outage_s = until + 1.0 - time.monotonic()
        say(f"  {fault} killed with -9")
        await asyncio.sleep(self.figures.outage_s)
        return killed_at

    def _slow_down(self, document: dict[str, Any]) -> None:
        """Set the definitions that the next start loads, and the delay of loading them."""
        file = self.home / "definitions.json"
        file.write_bytes(msgspec.json.encode(document))
        for namespace, server in zip(NAMESPACES, self.installation.servers, strict=True):
            server.settings["definitions"] = str(file)
            server.settings["failpoints"] = f"definitions.load=delay:{DELAYS_S[namespace]}"

    # --- after

    async def _load(self, traffic: Traffic) -> None:
        parts = self._parts()
        await asyncio.gather(
            *(traffic.publish(channel, parts[channel][1], batch=SMALL_BATCH) for channel in parts)
        )
        self.figures.repeated += traffic.repeated

    async def _turn(self, traffic: Traffic) -> None:
        """Open the loop once as many messages have died in both subscriptions as were published there."""
        for name in ("a", "b"):
            while (await _patiently(count, traffic.api, name)).dead_lettered < self.loop:
                await asyncio.sleep(LOOK_S)
        await _patiently(_done, traffic.api, self.plan.turn())

    async def _arrive(self, traffic: Traffic) -> None:
        for channel, expected in ((END, 2 * self.loop), (CHAIN_END, self.chain)):
            while await _patiently(_last_seq, traffic.api, channel) < expected:
                await asyncio.sleep(LOOK_S)

    async def _world(self, namespace: str, traffic: Traffic) -> World:
        world = World(published=traffic.published)
        session = await self.installation.left.connect()
        await read_database(session, namespace, world)
        await session.close()
        await read_api(traffic.api, self.plan, world)
        traffic.api.close()
        self.figures.add(world.letters)
        return world

    def _refuse_early(self, world: World, killed_at: float) -> None:
        """Raise RuntimeError if messages died before the outage although there were no routes: then the round
        proves nothing."""
        if self.plan.variant is Variant.FILE and any(e.died_at < killed_at for e in world.letters):
            raise RuntimeError("messages died before the outage: give them a longer --own-ttl")


async def _patiently(ask: Callable[..., Awaitable[Any]], *what: Any) -> Any:
    """Repeat a request until there is an answer."""
    while True:
        try:
            return await ask(*what)
        except UnreachableError:
            await asyncio.sleep(RETRY_S)


async def _done(api: Api, request: Request) -> None:
    method, path, body = request
    await api.call(method, path, body)


async def _last_seq(api: Api, channel: str) -> int:
    """The last seq of a channel; 0 if it does not exist."""
    try:
        return int((await api.call("GET", f"/v1/channels/{channel}"))["last_seq"])
    except RefusedError as error:
        if error.status != 404:
            raise
        return 0
