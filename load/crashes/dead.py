"""A first process that buries nobody, as many containers have it: what is killed stays a zombie."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

from load.children import tree
from load.waiting import wait_until

_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def adopt() -> None:
    """Become the parent of every process below this one whose own parent dies, in place of the first one."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become a subreaper")


def is_dead(pid: int) -> bool:
    """Whether a process is gone, or a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True


def zombies(of: int) -> list[int]:
    """The dead that a process has not buried."""
    return [pid for pid in tree(of)[1:] if is_dead(pid)]


def bury(pids: list[int]) -> None:
    """Collect them, as far as they are this process' own."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def await_death(pids: list[int], patience: float = 10.0) -> None:
    """Return once all are dead, be it as zombies; raises RuntimeError when one is not after `patience`
    seconds."""
    wait_until(lambda: all(map(is_dead, pids)), f"all of {pids} are dead", patience)
