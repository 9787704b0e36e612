"""Shared by the connections of one server: their deadlines, and the bytes that are held for them.

A process has one budget for bytes of incomplete requests and for written bytes that clients have not taken.
When it is used up, the connection that has held a part of it for the longest time gives way.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_NOTHING: Final = struct.pack("i", 0)


class Watch(Generic[T]):
    """Connections of which something is expected, each with its deadline in loop time.

    One timer serves them all. It runs only while there are any, so an idle stream costs nothing.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, tick_s: float, late: Callable[[T, float], None]
    ) -> None:
        self._loop = loop
        self._tick_s = tick_s
        self._late = late
        self._owing: dict[T, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._owing)

    def __contains__(self, one: object) -> bool:
        return one in self._owing

    def expect(self, one: T, by: float) -> None:
        """Calls `late` with it at `by`, within one tick, unless it is dropped before."""
        self._owing[one] = by
        if self._timer is None:
            self._timer = self._loop.call_later(self._tick_s, self._tick)

    def drop(self, one: T) -> None:
        """Removes its deadline."""
        self._owing.pop(one, None)

    def _tick(self) -> None:
        now = self._loop.time()
        for one in [one for one, by in self._owing.items() if by <= now]:
            self._late(one, now)
        self._timer = self._loop.call_later(self._tick_s, self._tick) if self._owing else None


class Holder(Protocol):
    """A connection for which bytes are held."""

    def give_way(self) -> None:
        """Releases its bytes at once, because they are needed."""


class Connection(Holder, Protocol):
    """A connection of which something is expected."""

    def timed_out(self, now: float) -> None:
        """Its client sent nothing, or too little, for too long; `now` is loop time."""

    def not_taken(self, now: float) -> None:
        """Its client took nothing of its bytes for too long; `now` is loop time."""


class Budget:
    """The bytes that are held for connections, all together at most `limit_bytes`.

    Holders are kept in the order in which they began to hold something. After `commit` a holder cannot give
    way any more: its request is complete and is being carried out.
    """

    __slots__ = ("_committed", "_held", "_shared", "gave_way", "held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.gave_way = 0
        self._held: dict[Holder, tuple[int, bytes | None]] = {}
        self._committed: dict[Holder, int] = {}
        self._shared: dict[int, int] = {}

    def hold(self, holder: Holder, size_bytes: int, shared: bytes | None = None) -> None:
        """Sets the bytes that it holds, plus `shared` bytes, which count once for all their holders."""
        if shared is not None:
            self._share(shared, 1)
        self._count(holder, (size_bytes, shared))
        while self.held_bytes > self.limit_bytes and self._held:
            longest = next(iter(self._held))
            self.release(longest)
            self.gave_way += 1
            longest.give_way()

    def commit(self, holder: Holder) -> None:
        """Keeps its bytes until they are released."""
        if holder in self._held:
            size_bytes, shared = self._held.pop(holder)
            assert shared is None, "only answers are shared"
            self._committed[holder] = size_bytes

    def release(self, holder: Holder) -> None:
        """Releases all bytes that are held for it."""
        if not self._held and not self._committed:
            return
        self.held_bytes -= self._committed.pop(holder, 0)
        self._count(holder, None)

    def _count(self, holder: Holder, now: tuple[int, bytes | None] | None) -> None:
        before = self._held.get(holder)
        if before is not None:
            self.held_bytes -= before[0]
            if before[1] is not None:
                self._share(before[1], -1)
        if now is None:
            self._held.pop(holder, None)
            return
        self._held[holder] = now
        self.held_bytes += now[0]

    def _share(self, shared: bytes, by: int) -> None:
        holders = self._shared.get(id(shared), 0)
        if by > 0 and not holders:
            self.held_bytes += len(shared)
        if by < 0 and holders == 1:
            self.held_bytes -= len(shared)
            del self._shared[id(shared)]
        else:
            self._shared[id(shared)] = holders + by


class Shared:
    """The shared state of the connections of one server."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tick_s: float, buffer_bytes: int) -> None:
        self.senders: Watch[Connection] = Watch(loop, tick_s, lambda one, now: one.timed_out(now))
        """The connections that still owe bytes of a request."""
        self.readers: Watch[Connection] = Watch(loop, tick_s, lambda one, now: one.not_taken(now))
        """The connections that have not taken all written bytes."""
        self.budget = Budget(buffer_bytes)
        self.check_at = 0.0
        """When to search again for connections that can make room; the last search found none."""


_shared: Final[WeakKeyDictionary[object, Shared]] = WeakKeyDictionary()


def shared_by(server: object, loop: asyncio.AbstractEventLoop, tick_s: float, buffer_bytes: int) -> Shared:
    """What the connections of this server share. Its first connection makes it."""
    shared = _shared.get(server)
    if shared is None:
        shared = _shared[server] = Shared(loop, tick_s, buffer_bytes)
    return shared


def buffers() -> tuple[int, int]:
    """Bytes that this process holds for connections, and how many connections had to give way for others."""
    budgets = [shared.budget for shared in _shared.values()]
    return sum(b.held_bytes for b in budgets), sum(b.gave_way for b in budgets)


def unacknowledged_bytes(file: int) -> int:
    """Bytes that the kernel holds until the peer confirms them; 0 if the kernel does not say."""
    try:
        unsent: int = struct.unpack("i", fcntl.ioctl(file, termios.TIOCOUTQ, _NOTHING))[0]
    except (OSError, ValueError):
        return 0
    return unsent
