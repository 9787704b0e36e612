"""Handles folders that other users may have made or may write to. It follows no links and checks owners.

Root works here beside a Postgres of another user, and that user can change its own folders at any time.
"""

import os
import stat
from pathlib import Path

from app.embedded.errors import EmbeddedError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def make_private(folder: Path, owners: set[int], give_to: tuple[int, int] | None = None) -> None:
    """Make a folder that only its owner can enter. The owner is `give_to` (uid, gid) if given, else this
    user.

    Raises `EmbeddedError` for a link, and for a folder whose owner is not in `owners`: the owner of a folder
    controls its contents.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = os.open(folder, _FOLDER)
    except OSError:
        raise _foreign(folder) from None
    try:
        if os.fstat(descriptor).st_uid not in owners:
            raise _foreign(folder)
        os.fchmod(descriptor, 0o700)
        if give_to is not None:
            os.fchown(descriptor, *give_to)
    finally:
        os.close(descriptor)


def give(folder: Path, uid: int, gid: int) -> None:
    """Gives a folder and its contents to a user. The folder itself comes last, so that only this user can
    enter and change it until then."""
    for _, names, files, descriptor in os.fwalk(folder, topdown=False, follow_symlinks=False):
        for name in (*names, *files):
            os.chown(name, uid, gid, dir_fd=descriptor, follow_symlinks=False)
    os.chown(folder, uid, gid, follow_symlinks=False)


def read_plain(path: Path, limit_bytes: int = 4096) -> str | None:
    """The beginning of a file; None if there is no regular file. A link or a pipe is not a regular file."""
    try:
        descriptor = os.open(path, _PLAIN)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return os.read(descriptor, limit_bytes).decode(errors="replace")
    finally:
        os.close(descriptor)


def replace(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file atomically: a crash leaves the old one or the new one. Its folder must be this
    user's."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, mode)
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    fresh.replace(path)


def sync(folder: Path) -> None:
    """Syncs a folder's entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _foreign(folder: Path) -> EmbeddedError:
    return EmbeddedError(
        f"{folder} is a link or belongs to someone else; remove it or set GAPLESS_HOME to another folder"
    )
