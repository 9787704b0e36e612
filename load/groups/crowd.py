"""The members of a storm: started, stopped (SIGSTOP), killed and started again, each time as a new
process."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext, ForkServerProcess

from load.groups import member
from load.groups.history import SECOND, Pause
from load.groups.plan import Errand

FREEZE_S = (2.3, 4.0)
"""Longer than a lease."""


@dataclass(slots=True)
class Hand:
    """One member over all its processes."""

    errand: Errand
    process: ForkServerProcess | None = None
    life: int = 0
    frozen: bool = False


@dataclass(slots=True)
class Crowd:
    """All members. `killed`: when a process was killed from here. Processes that crash themselves note
    that."""

    errands: list[Errand]
    chance: random.Random
    hands: list[Hand] = field(default_factory=list)
    lives: int = 0
    killed: dict[int, int] = field(default_factory=dict)
    pauses: list[Pause] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    _context: ForkServerContext = field(default_factory=lambda: get_context("forkserver"))
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _stopping: bool = False

    def start(self) -> None:
        """Start all members. Their modules are loaded once, and processes are forked from then on."""
        self._context.set_forkserver_preload(["load.groups.member"])
        self.hands = [Hand(errand) for errand in self.errands]
        for hand in self.hands:
            self._live(hand)

    def _live(self, hand: Hand) -> None:
        self.lives += 1
        errand = replace(hand.errand, number=self.lives, seed=self.chance.getrandbits(32))
        hand.life = self.lives
        process = hand.process = self._context.Process(target=member.run, args=(errand,), daemon=True)
        process.start()
        loop = asyncio.get_running_loop()
        loop.add_reader(process.sentinel, self._ended, hand, process)

    def _ended(self, hand: Hand, process: ForkServerProcess) -> None:
        asyncio.get_running_loop().remove_reader(process.sentinel)
        process.join()
        if self._stopping:
            return
        if process.exitcode == -signal.SIGKILL:
            self.seen["killed"] += 1
        else:
            self.broken.append(f"{hand.errand.member} ended by itself with {process.exitcode}")
        self._spawn(self._again(hand))

    async def _again(self, hand: Hand) -> None:
        await asyncio.sleep(self.chance.uniform(0.05, 0.3))
        if not self._stopping:
            self._live(hand)

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def torment(self, every_s: float) -> None:
        """Stop or kill random members repeatedly during the stormy times."""
        while True:
            await asyncio.sleep(self.chance.expovariate(1 / every_s))
            hand = self.chance.choice(self.hands)
            if hand.frozen or not hand.errand.is_stormy(time.monotonic_ns()):
                continue
            if self.chance.random() < 0.5:
                self._kill(hand)
            else:
                self._spawn(self._freeze(hand))

    def _kill(self, hand: Hand) -> None:
        process = hand.process
        if process is not None and process.is_alive() and process.pid is not None:
            self.killed[hand.life] = time.monotonic_ns()
            os.kill(process.pid, signal.SIGKILL)

    async def _freeze(self, hand: Hand) -> None:
        process = hand.process
        if process is None or not process.is_alive() or process.pid is None:
            return
        from_ns = time.monotonic_ns()
        hand.frozen = True
        os.kill(process.pid, signal.SIGSTOP)
        self.seen["frozen"] += 1
        await asyncio.sleep(self.chance.uniform(*FREEZE_S))
        if process.is_alive():
            os.kill(process.pid, signal.SIGCONT)
        hand.frozen = False
        # What it notes in its first moments awake is still the past.
        self.pauses.append(Pause(hand.errand.member, from_ns, time.monotonic_ns() + SECOND // 20))

    def stop(self) -> None:
        """End everybody for good."""
        self._stopping = True
        for hand in self.hands:
            self._kill(hand)
        for task in self._tasks:
            task.cancel()
        for hand in self.hands:
            if hand.process is not None:
                asyncio.get_running_loop().remove_reader(hand.process.sentinel)
                hand.process.join(10)
