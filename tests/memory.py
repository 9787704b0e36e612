"""A folder in memory for the run's Postgres: its tests make and remove thousands of small files.

ext4 does not give an inode away in the minute after it was freed, and looks at each such inode again for
every new file. With as many as tests free, a new database takes ten times as long as in memory.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MEMORY = Path("/dev/shm")
PREFIX = "gapless-tests-"
ROOM_BYTES = 4 << 30


@contextmanager
def folder_in_memory(elsewhere: Path) -> Iterator[Path]:
    """A new folder, removed at the end. It is `elsewhere` where memory is short."""
    if not has_room():
        yield elsewhere
        return
    remove_leftovers()
    folder, held = _make()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
        os.close(held)


def has_room() -> bool:
    """Whether files may lie in memory here, and much of it is free."""
    with suppress(OSError):
        facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = 1024 * int(facts["MemAvailable"].split()[0])
        return min(free, shutil.disk_usage(MEMORY).free) > ROOM_BYTES
    return False


def remove_leftovers() -> None:
    """What a killed run has left. The lock of a run ends with its process."""
    for folder in MEMORY.glob(f"{PREFIX}*"):
        with suppress(OSError):
            held = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(held)


def _make() -> tuple[Path, int]:
    """A folder, and what holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=MEMORY))
        held = os.open(folder, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
        if folder.exists():  # Else another run came between, and took it for a leftover.
            return folder, held
        os.close(held)
