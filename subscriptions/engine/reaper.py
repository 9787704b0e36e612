"""What time alone decides: ended leases, expired messages, backlogs too long, messages that are due.

Every process runs these loops; the database lets one win each piece. They wait at the gate: no dead letter is
made before the definitions that say where it goes are there, nor in a namespace that is not this service's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from subscriptions.domain.delivery import Touched
from subscriptions.domain.errors import GaplessError
from subscriptions.engine.gate import Gate
from subscriptions.ports import Clock, DeparturePort, ReapPort, SchedulePort

log = logging.getLogger(__name__)

REAP_LIMIT = 1000
MAX_ROUNDS = 20
EVERY_S = 0.5
SOON_S = 0.1
"""After a round that decided something: what died may have come to where it soon dies again."""
DUE_LIMIT = 1000
RETRY_S = 1.0
MAX_EXPECTED = 10_000

Tell = Callable[[tuple[Touched, ...]], None]


@dataclass(frozen=True, slots=True)
class Reaped:
    """What one round did: subscriptions looked at, messages decided."""

    subscriptions: int
    messages: int


class Reaper:
    """`settle()` tells the watermark first; `woken` hears of each subscription that was decided about."""

    def __init__(
        self,
        port: ReapPort,
        gate: Gate,
        *,
        settle: Callable[[], Awaitable[tuple[int, int]]],
        touched: Tell,
        woken: Callable[[int], None],
    ) -> None:
        self._port = port
        self._gate = gate
        self._settle = settle
        self._touched = touched
        self._woken = woken
        self._rounds = 0
        self._failed: dict[int, int] = {}
        """The round in which a subscription could not be decided about, of those that were due last."""

    async def run_once(self) -> Reaped:
        """One round, which ends at the first failure: mostly the database is away, and then all would fail.
        Where it is one subscription that cannot be decided about, the others come before it from then on.

        Raises GaplessError.
        """
        due = await self._port.due(self._gate.namespaces)
        settled, _ = await self._settle() if due else (0, 0)
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
            # Large messages make a call decide fewer than it was asked to, and then there is more.
            if done < REAP_LIMIT // 64:
                break
        self._woken(subscription_id)
        return total

    async def run(self) -> None:
        """Rounds until cancelled, once the gate is open."""
        await self._gate.passed()
        while True:
            try:
                reaped = await self.run_once()
                pause_s = 0.01 if reaped.messages >= REAP_LIMIT else SOON_S if reaped.messages else EVERY_S
            except GaplessError as error:
                log.warning("expiry has to wait: %s", error.detail)
                pause_s = RETRY_S
            await asyncio.sleep(pause_s)


class Departures:
    """Gives back what processes that are gone were streaming, in a loop of its own: a failure here holds up
    nothing else. `woken` hears of each subscription."""

    def __init__(
        self, port: DeparturePort, gate: Gate, *, touched: Tell, woken: Callable[[int], None]
    ) -> None:
        self._port = port
        self._gate = gate
        self._touched = touched
        self._woken = woken

    async def run_once(self) -> int:
        """How many leases ended. Raises GaplessError."""
        total = 0
        for holder, subscription_id in await self._port.departed(self._gate.namespaces):
            done, touched = await self._port.release_departed(holder, subscription_id, REAP_LIMIT)
            self._touched(touched)
            self._woken(subscription_id)
            total += done
        return total

    async def run(self) -> None:
        """Rounds until cancelled, once the gate is open."""
        await self._gate.passed()
        while True:
            try:
                pause_s = SOON_S if await self.run_once() else EVERY_S
            except GaplessError as error:
                log.warning("leases of processes that are gone have to wait: %s", error.detail)
                pause_s = RETRY_S
            await asyncio.sleep(pause_s)


class Scheduler:
    """Publishes what is due. Messages scheduled through this process are on time, `MAX_EXPECTED` of them;
    others within `EVERY_S`."""

    def __init__(self, port: SchedulePort, gate: Gate, *, clock: Clock, touched: Tell) -> None:
        self._port = port
        self._gate = gate
        self._clock = clock
        self._touched = touched
        self._expected: list[float] = []
        self._sooner = asyncio.Event()

    def expect(self, in_s: float) -> None:
        """Something is due in so many seconds."""
        if len(self._expected) < MAX_EXPECTED:
            heappush(self._expected, self._clock() + in_s)
            self._sooner.set()

    async def run_once(self) -> int:
        """How many were published. Raises GaplessError when the database cannot be reached."""
        done, touched = await self._port.publish_due(self._gate.namespaces, DUE_LIMIT)
        self._touched(touched)
        return done

    async def run(self) -> None:
        """Rounds until cancelled, once the gate is open."""
        await self._gate.passed()
        while True:
            while self._expected and self._expected[0] <= self._clock():
                heappop(self._expected)
            try:
                pause_s = EVERY_S if await self.run_once() < DUE_LIMIT else 0.0
            except GaplessError as error:
                log.warning("scheduled messages have to wait: %s", error.detail)
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
