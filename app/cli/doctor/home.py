"""The folder in which the embedded servers keep everything."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from app.cli.doctor.check import Check, fail, ok, warn
from app.embedded import EmbeddedError
from app.embedded.binaries import find_postgres
from app.embedded.cluster import major_of

LITTLE_BYTES = 1024**3
TOO_LITTLE_BYTES = 100 * 1024**2
_LOCKS = Path("/proc/locks")


@dataclass(frozen=True, slots=True)
class Home:
    """`holder` is the process that serves this home now."""

    path: Path
    exists: bool
    holder: int | None


def read_home(path: Path) -> Home:
    """Nothing is made or changed by looking."""
    return Home(path, path.is_dir(), _holder(path / "lock"))


def checks(home: Home) -> list[Check]:
    """The folder, its room, who serves it, and whether its data fits the programs."""
    found = [_folder(home), _room(home.path)]
    if home.exists:
        served = "free" if home.holder is None else f"served by process {home.holder}"
        found.append(ok("home lock", served))
        found.append(_data(home))
    return found


def _folder(home: Home) -> Check:
    if not home.exists:
        return _unmade(home.path)
    facts = home.path.stat()
    detail = f"{home.path}, owner {facts.st_uid}, mode {stat.S_IMODE(facts.st_mode):o}"
    if not os.access(home.path, os.W_OK | os.X_OK):
        return fail("home", f"{detail}: not writable here", "run as its owner, or set GAPLESS_HOME")
    if facts.st_uid != os.geteuid():
        return warn("home", detail, f"it belongs to another user than this one ({os.geteuid()})")
    if facts.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return warn("home", f"{detail}: open to other users", f"chmod 700 {home.path}")
    return ok("home", detail)


def _unmade(path: Path) -> Check:
    parent = _existing(path)
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        return fail("home", f"{path} is not there and cannot be made", "set GAPLESS_HOME to another folder")
    return ok("home", f"{path}, made by the first serve")


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _room(path: Path) -> Check:
    free = shutil.disk_usage(_existing(path)).free
    detail = f"{free / 1024**3:.1f} GiB free"
    if free < TOO_LITTLE_BYTES:
        return fail("disk", detail, "make room: publishes are refused when the disk is full")
    if free < LITTLE_BYTES:
        return warn("disk", detail, "make room, or set what channels keep (gapless channels set)")
    return ok("disk", detail)


def _data(home: Home) -> Check:
    major = major_of(home.path / "postgres")
    if major is None:
        return ok("home data", "none yet")
    try:
        find_postgres(major)
    except EmbeddedError as error:
        return fail("home data", str(error), "see there")
    return ok("home data", f"written by Postgres {major}")


def _holder(lock: Path) -> int | None:
    """Taking the lock to see whether it is free could make a `serve` fail that starts just now: so the
    kernel's list is read, where there is one."""
    try:
        facts = lock.stat()
        pid = int(lock.read_text() or 0)
    except (OSError, ValueError):
        return None
    if _LOCKS.exists():
        mark = f":{facts.st_ino} "
        held = any("FLOCK" in line and mark in line for line in _LOCKS.read_text().splitlines())
        return pid if held else None
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return pid
    return None
