"""The errors of embedded servers."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_TEXTS = ("No space left on device", "Disk quota exceeded")
_LITTLE_BYTES = 1024 * 1024


class EmbeddedError(Exception):
    """An embedded server cannot do what was asked. The text tells the user what to do."""


class PassingError(EmbeddedError):
    """The server cannot do it now, but a later attempt may succeed without a change to this installation."""


class HomeTakenError(EmbeddedError):
    """Another process serves this home."""


@contextmanager
def in_words(home: Path) -> Iterator[None]:
    """Turn errors of the operating system into `EmbeddedError`, and those of a full disk into
    `PassingError`."""
    try:
        yield
    except PassingError:
        raise
    except EmbeddedError as error:
        # A server cannot log its error on a full disk, so the free space is checked too.
        if any(text in str(error) for text in _FULL_TEXTS) or _is_full(home):
            raise disk_full(home) from error
        raise
    except OSError as error:
        if is_out_of_space(error):
            raise disk_full(home) from error
        raise EmbeddedError(f"{error.strerror or error}: {error.filename or home}") from error


def is_out_of_space(error: OSError) -> bool:
    """Whether a call failed because a disk or a quota is full."""
    return error.errno in _FULL


def disk_full(home: Path) -> PassingError:
    """The error for a full disk."""
    return PassingError(f"the disk of {home} is full; make room on it")


def _is_full(home: Path) -> bool:
    try:
        disk = os.statvfs(home)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _LITTLE_BYTES or (disk.f_files > 0 and disk.f_favail == 0)
