"""A first process that reaps no orphans, as in many containers: killed processes stay zombies."""

from __future__ import annotations

import contextlib
import ctypes
import os

from load.children import stat_of, tree
from load.waiting import wait_until

_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def adopt() -> None:
    """Become the parent of every descendant whose own parent dies, in place of the first process."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become a subreaper")


def is_dead(pid: int) -> bool:
    """Whether a process has ended, or is a zombie."""
    return stat_of(pid)[:1] in ([], ["Z"], ["X"])


def zombies(of: int) -> list[int]:
    """The zombies among the descendants of a process."""
    return [pid for pid in tree(of)[1:] if is_dead(pid)]


def reap(pids: list[int]) -> None:
    """Reap those of the processes that are children of this one."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def await_death(pids: list[int]) -> None:
    """Return once all are dead or zombies. Raises RuntimeError if one is not in time."""
    wait_until(lambda: all(map(is_dead, pids)), f"all of {pids} are dead")
