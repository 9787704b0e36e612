"""The folder that holds everything an installation keeps: `postgres`, `redis`, `log`, `run` and a lock."""

import fcntl
import hashlib
import os
import stat
import tempfile
from pathlib import Path

from app.embedded.errors import EmbeddedError

_SOCKET_PATH_LIMIT = 103  # bytes with its ending zero: 108 on Linux, 104 on macOS
_LONGEST_SOCKET_NAME = "/.s.PGSQL.5432.lock"


def prepare(home: Path) -> Path:
    """Make the home where it is missing, closed to others, and answer its absolute path."""
    home = home.absolute()
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise EmbeddedError(
            f"cannot make {home}: {error.strerror}; set GAPLESS_HOME to another folder"
        ) from None
    return home.resolve()


def digest(home: Path) -> str:
    """A short name for a home, used where a path is too long or must not hold odd characters."""
    return hashlib.sha256(os.fsencode(home)).hexdigest()[:10]


def socket_folder(home: Path) -> Path:
    """Where the servers' sockets go: `run` in the home, or a short folder when that path is too long."""
    near = home / "run"
    if len(os.fsencode(near)) + len(_LONGEST_SOCKET_NAME) <= _SOCKET_PATH_LIMIT:
        return near
    return Path(tempfile.gettempdir()) / f"gapless-{os.geteuid()}-{digest(home)}"


def make_private(folder: Path, owners: set[int]) -> None:
    """Make a folder that only its owner can enter; who can enter it, can use the servers.

    Refuses a link, and one that someone outside `owners` made: the short folder lies where all can write.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid not in owners:
        raise EmbeddedError(
            f"{folder} belongs to someone else; remove it or set GAPLESS_HOME to a shorter path"
        )
    folder.chmod(0o700)


class HomeLock:
    """Held by the one process that serves a home, until `release` or until the process ends in any way."""

    def __init__(self, home: Path) -> None:
        self.path = home / "lock"
        self._descriptor: int | None = None

    def take(self) -> None:
        """Raises `EmbeddedError` that names the process which holds the lock."""
        prepare(self.path.parent)
        # A bare descriptor: a file object would let go of the lock once nobody refers to it.
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        except PermissionError:
            owner = self.path.parent.stat().st_uid
            raise EmbeddedError(
                f"{self.path.parent} is not this user's (owner {owner}); set GAPLESS_HOME to another folder"
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode().strip() or "unknown"
            os.close(descriptor)
            raise EmbeddedError(
                f"{self.path.parent} is served by another Gapless already (process {holder});"
                " stop it, or set GAPLESS_HOME to another folder"
            ) from None
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
