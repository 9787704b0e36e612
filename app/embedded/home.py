"""The home: the folder of an installation, with `postgres`, `redis`, `log`, `run` and a lock file."""

import fcntl
import hashlib
import os
import tempfile
import time
from pathlib import Path

from app.embedded import processes
from app.embedded.errors import EmbeddedError, HomeTakenError, disk_full, in_words, is_out_of_space

_SOCKET_PATH_LIMIT = 103  # bytes; the systems' limits include the final zero: 108 on Linux, 104 on macOS
_LONGEST_SOCKET_NAME = "/.s.PGSQL.5432.lock"
_DYING_S = 5.0
_POLL_S = 0.02


def prepare(home: Path) -> Path:
    """Makes the home if it is missing, for this user only, and returns its absolute path.

    Raises `EmbeddedError` for a home of another user, who could change anything in it. A home of root is
    allowed, because a container's volume may belong to root.
    """
    home = home.absolute()
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        if is_out_of_space(error):
            raise disk_full(home.parent) from error
        raise EmbeddedError(
            f"cannot make {home}: {error.strerror}; set GAPLESS_HOME to another folder"
        ) from None
    home = home.resolve()
    if (owner := home.stat().st_uid) not in (os.geteuid(), 0):
        raise EmbeddedError(
            f"{home} belongs to user {owner}, and this is user {os.geteuid()}: run Gapless as its owner,"
            " or set GAPLESS_HOME to another folder"
        )
    return home


def digest(home: Path) -> str:
    """A short name for a home, for places where its path is too long or has characters that are not
    allowed."""
    return hashlib.sha256(os.fsencode(home)).hexdigest()[:10]


def socket_folder(home: Path) -> Path:
    """The folder of the servers' sockets: `run` in the home, or a temporary folder if that path is too
    long."""
    near = home / "run"
    if len(os.fsencode(near)) + len(_LONGEST_SOCKET_NAME) <= _SOCKET_PATH_LIMIT:
        return near
    return Path(tempfile.gettempdir()) / f"gapless-{os.geteuid()}-{digest(home)}"


def owners(home: Path) -> set[int]:
    """The users (uid) that may own folders in a home: this user, and the owner of the data."""
    data = home / "postgres"
    return {os.geteuid(), data.lstat().st_uid} if data.exists() else {os.geteuid()}


class HomeLock:
    """The lock of the one process that serves a home, held until `release` or until the process ends."""

    def __init__(self, home: Path) -> None:
        self.path = home / "lock"
        self._descriptor: int | None = None

    def take(self) -> None:
        """Take the lock. Raises `HomeTakenError`, which names the process that holds it.

        A killed holder keeps the lock until the kernel has ended it, so this waits up to 5 s for that.
        """
        prepare(self.path.parent)
        with in_words(self.path.parent):
            self._take()

    def _take(self) -> None:
        # A bare descriptor: a garbage-collected file object would release the lock.
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except PermissionError:
            owner = self.path.parent.stat().st_uid
            raise EmbeddedError(
                f"{self.path.parent} belongs to user {owner}; set GAPLESS_HOME to another folder"
            ) from None
        try:
            self._lock(descriptor)
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def _lock(self, descriptor: int) -> None:
        deadline = time.monotonic() + _DYING_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 32, 0).decode().strip() or "unknown"
                if time.monotonic() > deadline or processes.is_running(holder):
                    raise HomeTakenError(
                        f"{self.path.parent} is served by another Gapless already (process {holder});"
                        " stop it, or set GAPLESS_HOME to another folder"
                    ) from None
                time.sleep(_POLL_S)
            else:
                return

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
