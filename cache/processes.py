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
        self.gone: set[str] = set()
        """Those that are lost."""
        self.newly_gone: asyncio.Queue[str] = asyncio.Queue()
        """The same, for who tells that their clients left."""
        self.doubted = False
        """Whether others took this process for lost, since somebody set this to false."""

    async def look(self, link: Link) -> None:
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

    async def _judge(self, link: Link, names: list[str]) -> None:
        left = await link.ask([("PTTL", self._key(name)) for name in names]) if names else []
        refuse_errors(left)
        forgotten = [
            name
            for name, ms in zip(names, left, strict=True)
            if self._is_forgotten(name, self._silence_s(name, ms))
        ]
        if forgotten:
            refuse_errors(await link.ask([("ZREM", self._alive, *forgotten)]))
        named = set(names).difference(forgotten)
        self.gone &= named
        self._absent_since = {name: at for name, at in self._absent_since.items() if name in named}

    def _silence_s(self, name: str, left_ms: object) -> float:
        """How long a process has been silent, by the time that is left to its key."""
        if not isinstance(left_ms, int):
            raise LinkError(f"an answer to something else: {words(left_ms)}")
        if left_ms >= 0:
            self._absent_since.pop(name, None)
            return (KEPT_MS - left_ms) / 1000
        now = asyncio.get_running_loop().time()
        return now - self._absent_since.setdefault(name, now)

    def _is_forgotten(self, name: str, silent_s: float) -> bool:
        """Note whether the process is lost. Returns whether nothing can be left of it."""
        if silent_s <= self._lost_after_s:
            self.gone.discard(name)
        elif name not in self.gone:
            self.gone.add(name)
            self.newly_gone.put_nowait(name)
        return name in self._absent_since and silent_s > KEPT_MS / 1000

    def doubting(self, process: str) -> list[Command]:
        """What tells a process that its clients were said to have left."""
        return [("SADD", self._lost, process), ("PEXPIRE", self._lost, KEPT)]

    def removal(self) -> list[Command]:
        """What a process that stops takes away."""
        return [("DEL", self._key(self._own)), ("ZREM", self._alive, self._own)]

    def _key(self, process: str) -> str:
        return f"{self._alive}/{process}"
