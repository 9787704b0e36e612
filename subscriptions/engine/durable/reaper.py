"""Loops for work that time alone makes due: ended leases, expired messages, backlogs too long, scheduled
messages.

Every process runs these loops; for each piece of work the database lets only one process win. They wait at
the gate: a dead letter is made only after the definitions that say where it goes are loaded, and only in
namespaces of this service.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from subscriptions.domain.delivery import Touched
from subscriptions.domain.errors import GaplessError
from subscriptions.engine.gate import Gate
from subscriptions.ports import Clock, DeparturePort, ReadWatermark, ReapPort, SchedulePort

log = logging.getLogger(__name__)

REAP_LIMIT = 1000
MAX_ROUNDS = 20
EVERY_S = 0.5
SOON_S = 0.1
"""The pause after a round that decided something: a copy may soon die again in another subscription."""
DUE_LIMIT = 1000
RETRY_S = 1.0
MAX_EXPECTED = 10_000

Tell = Callable[[tuple[Touched, ...]], None]


@dataclass(frozen=True, slots=True)
class Reaped:
    """The result of one round: subscriptions looked at, messages decided."""

    subscriptions: int
    messages: int


class Reaper:
    """Reaps subscriptions. `look()` asks for the settled id; `woken` is called for each subscription."""

    def __init__(
        self,
        port: ReapPort,
        gate: Gate,
        *,
        read_watermark: ReadWatermark,
        touched: Tell,
        woken: Callable[[int], None],
    ) -> None:
        self._port = port
        self._gate = gate
        self._read_watermark = read_watermark
        self._touched = touched
        self._woken = woken
        self._rounds = 0
        self._failed: dict[int, int] = {}
        """Subscription that is due → the last round in which reaping it failed."""

    async def run_once(self) -> Reaped:
        """Run one round. It ends at the first failure: usually the database is away, and then all would fail.
        If only one subscription cannot be decided, the others come before it in later rounds.

        Raises GaplessError.
        """
        due = await self._port.due(self._gate.namespaces)
        settled, _ = await self._read_watermark() if due else (0, 0)
        self._rounds += 1
        self._failed = {each: self._failed[each] for each in due if each in self._failed}
        messages = 0
        for subscription_id in sorted(due, key=lambda each: self._failed.get(each, 0)):
            try:
                messages += await self._reap(subscription_id, settled)
            except GaplessError:
                self._failed[subscription_id] = self._rounds
                raise
            self._failed.pop(subscription_id, None)
        return Reaped(len(due), messages)

    async def _reap(self, subscription_id: int, settled: int) -> int:
        total = 0
        for _ in range(MAX_ROUNDS):
            done, touched = await self._port.reap(subscription_id, settled, REAP_LIMIT)
            self._touched(touched)
            total += done
            # With large messages a call decides fewer than `REAP_LIMIT`, though there are more.
            if done < REAP_LIMIT // 64:
                break
        self._woken(subscription_id)
        return total

    async def run(self) -> None:
        """Run rounds until cancelled, once the gate is open."""
        await self._gate.passed()
        while True:
            try:
                reaped = await self.run_once()
                pause_s = 0.01 if reaped.messages >= REAP_LIMIT else SOON_S if reaped.messages else EVERY_S
            except GaplessError as error:
                log.warning("expiry is delayed: %s", error.detail)
                pause_s = RETRY_S
            await asyncio.sleep(pause_s)


class Departures:
    """Ends the leases of streams whose process is gone. It is a loop of its own, so that a failure here does
    not delay other work. `woken` is called for each subscription."""

    def __init__(
        self, port: DeparturePort, gate: Gate, *, touched: Tell, woken: Callable[[int], None]
    ) -> None:
        self._port = port
        self._gate = gate
        self._touched = touched
        self._woken = woken

    async def run_once(self) -> int:
        """Run one round; returns how many leases ended. Raises GaplessError."""
        total = 0
        for holder, subscription_id in await self._port.departed(self._gate.namespaces):
            done, touched = await self._port.release_departed(holder, subscription_id, REAP_LIMIT)
            self._touched(touched)
            self._woken(subscription_id)
            total += done
        return total

    async def run(self) -> None:
        """Run rounds until cancelled, once the gate is open."""
        await self._gate.passed()
        while True:
            try:
                pause_s = SOON_S if await self.run_once() else EVERY_S
            except GaplessError as error:
                log.warning("the release of leases of dead processes is delayed: %s", error.detail)
                pause_s = RETRY_S
            await asyncio.sleep(pause_s)


class Scheduler:
    """Publishes scheduled messages that are due. Up to `MAX_EXPECTED` messages scheduled through this process
    are published on time; others within `EVERY_S`."""

    def __init__(self, port: SchedulePort, gate: Gate, *, clock: Clock, touched: Tell) -> None:
        self._port = port
        self._gate = gate
        self._clock = clock
        self._touched = touched
        self._expected: list[float] = []
        self._sooner = asyncio.Event()

    def expect(self, in_s: float) -> None:
        """Note that a message is due in `in_s` seconds."""
        if len(self._expected) < MAX_EXPECTED:
            heappush(self._expected, self._clock() + in_s)
            self._sooner.set()

    async def run_once(self) -> int:
        """Run one round; returns how many were published. Raises GaplessError when the database cannot be
        reached."""
        done, touched = await self._port.publish_due(self._gate.namespaces, DUE_LIMIT)
        self._touched(touched)
        return done

    async def run(self) -> None:
        """Run rounds until cancelled, once the gate is open."""
        await self._gate.passed()
        while True:
            while self._expected and self._expected[0] <= self._clock():
                heappop(self._expected)
            try:
                pause_s = 0.0 if await self.run_once() else EVERY_S
            except GaplessError as error:
                log.warning("scheduled messages are delayed: %s", error.detail)
                pause_s = RETRY_S
            await self._pause(pause_s)

    async def _pause(self, pause_s: float) -> None:
        until = self._clock() + pause_s
        while (left := min([until, *self._expected[:1]]) - self._clock()) > 0:
            self._sooner.clear()
            try:
                async with asyncio.timeout(left):
                    await self._sooner.wait()
            except TimeoutError:
                return
