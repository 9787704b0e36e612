"""Which processes show presence, and which of them died.

Each process renews a key of its own every second, and a sorted set names all processes. The time that is left
to a key tells how long its process has been silent, by the clock of Redis. A process that was silent for too
long counts as lost. What it has shown has not expired yet, so others read which clients it had, and say that
they left.

A process that was only cut off for a while comes back. Whoever took it for lost has put its name into a set.
"""

from __future__ import annotations

import asyncio
from typing import Final

from cache.keeping import words
from cache.link import Link, LinkError
from cache.presence_members import PROCESS, Command
from cache.rounds import refuse_errors

MAX_NAMED: Final = 1024
"""Processes that are looked at."""
KEPT_MS: Final = 60_000
"""A silent process is known for this long, also after what it has shown expired."""
KEPT: Final = str(KEPT_MS)


class Processes:
    """The other processes, as this one has seen them. `lost_after_s`: after so long a silence one is lost."""

    def __init__(self, topic: str, own: str, lost_after_s: float) -> None:
        self._alive = f"{topic}/alive"
        self._lost = f"{topic}/lost"
        self._own = own
        self._lost_after_s = lost_after_s
        self._absent_since: dict[str, float] = {}
        """Processes that have no key: they stopped, or Redis was emptied."""
        self.gone: dict[str, bool] = {}
        """Those that are lost, and whether `next_gone` gave them out."""
        self._checked = asyncio.Event()
        self.doubted = False
        """Whether others took this process for lost, since somebody set this to false."""

    async def check(self, link: Link) -> None:
        """Renew the key of this process, and look at those of the others."""
        answers = await link.ask(
            [
                ("SET", self._key(self._own), "", "PX", KEPT),
                ("ZADD", self._alive, "0", self._own),
                ("PEXPIRE", self._alive, KEPT),
                ("ZRANGE", self._alive, "0", str(MAX_NAMED - 1)),
                ("SREM", self._lost, self._own),
            ]
        )
        refuse_errors(answers)
        wrong = [key for key, n in ((self._alive, 1), (self._lost, 4)) if isinstance(answers[n], Exception)]
        if wrong:  # Somebody else wrote a value of another kind there.
            refuse_errors(await link.ask([("DEL", *wrong)]))
            return
        done, _, _, named, doubted = answers
        if done != b"OK" or not isinstance(named, list) or len(named) > MAX_NAMED:
            raise LinkError(f"an answer to something else: {words(answers)}")
        self.doubted |= doubted == 1
        names = [name.decode() for name in named if isinstance(name, bytes) and PROCESS.fullmatch(name)]
        await self._judge(link, [name for name in names if name != self._own])

    async def next_gone(self) -> str:
        """The name of a process that is lost, once for each time it was lost."""
        while True:
            for name, given in self.gone.items():
                if not given:
                    self.gone[name] = True
                    return name
            self._checked.clear()
            await self._checked.wait()

    async def _judge(self, link: Link, names: list[str]) -> None:
        left = await link.ask([("PTTL", self._key(name)) for name in names]) if names else []
        refuse_errors(left)
        now = asyncio.get_running_loop().time()
        absent_since: dict[str, float] = {}
        gone: dict[str, bool] = {}
        forgotten: list[str] = []
        for name, left_ms in zip(names, left, strict=True):
            if not isinstance(left_ms, int):
                raise LinkError(f"an answer to something else: {words(left_ms)}")
            if left_ms >= 0:
                silent_s = (KEPT_MS - left_ms) / 1000
            else:
                # The key of a lost process has expired, so that process was silent for as long.
                since = now - KEPT_MS / 1000 if name in self.gone else now
                absent_since[name] = self._absent_since.get(name, since)
                silent_s = now - absent_since[name]
            if silent_s > KEPT_MS / 1000:
                forgotten.append(name)
            elif silent_s > self._lost_after_s:
                gone[name] = self.gone.get(name, False)
        self._absent_since, self.gone = absent_since, gone
        self._checked.set()
        if forgotten:
            refuse_errors(await link.ask([("ZREM", self._alive, *forgotten)]))

    def doubting(self, process: str) -> list[Command]:
        """What tells a process that its clients were said to have left."""
        return [("SADD", self._lost, process), ("PEXPIRE", self._lost, KEPT)]

    def removal(self) -> list[Command]:
        """What a process that stops takes away."""
        return [("DEL", self._key(self._own)), ("ZREM", self._alive, self._own)]

    def _key(self, process: str) -> str:
        return f"{self._alive}/{process}"
