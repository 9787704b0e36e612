"""What becomes of connections, locks and threads in a forked child. It must not touch those of its parent.

A child has copies of the parent's sockets, so both would read each other's answers, and what the child sends
or shuts down reaches the parent's peer. A lock that another thread held at the fork is never released there.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any
from weakref import WeakSet


class Forkable:
    """It is told in a forked child, before any other code runs there and while there is one thread.

    A subclass calls `__init__` last, so that a fork in another thread never meets a half-made object.
    """

    def __init__(self) -> None:
        _live.add(self)

    def _after_fork(self) -> None:
        raise NotImplementedError


class OneProcess(Forkable):
    """It works only in the process that used it first: its connections, tasks and locks are there."""

    _used = False
    _foreign = False
    """Whether a parent process used it."""

    def _use(self) -> None:
        """Raises `RuntimeError` if a parent process used it."""
        if self._foreign:
            raise RuntimeError(
                "it was used before this process was forked, and its connections are the parent's: "
                "make another client in the child"
            )
        self._used = True

    def _after_fork(self) -> None:
        self._foreign = self._foreign or self._used


_live: WeakSet[Forkable] = WeakSet()
_left: list[object] = []


def leave(*things: object) -> None:
    """Keeps the parent's things for ever: a generator of httpx that is freed waits for the lock of its pool,
    and another thread may have held that at the fork."""
    _left.extend(things)


def disconnect(socket: Any) -> None:
    """Closes the child's copy of a socket without a word to the peer, which else would not see the parent
    close its own. Its number stays taken, so that whoever closes it again closes nothing else."""
    if socket is None or (number := socket.fileno()) < 0:
        return
    with suppress(OSError):
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(nothing, number, inheritable=False)
        os.close(nothing)


def _forked() -> None:
    for one in list(_live):
        one._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
