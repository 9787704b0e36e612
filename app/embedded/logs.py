"""A server's log file, bounded in size."""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import IO

from app.embedded.folders import make_private


class LogFile:
    """A file that a child writes to. `rotate` keeps it and its one older copy below about twice
    `limit_bytes`.

    The child keeps the file open in append mode, so `rotate` copies the file and then truncates it in place.
    Lines written between the two are lost, which is acceptable for a log.
    """

    def __init__(self, path: Path, limit_bytes: int = 16 * 1024 * 1024) -> None:
        self.path = path
        self.limit_bytes = limit_bytes

    def open(self) -> IO[bytes]:
        make_private(self.path.parent, {os.geteuid()})
        self.rotate()
        return self.path.open("ab", buffering=0)

    def rotate(self) -> None:
        """Keeps a copy and truncates the file. On a full disk it only truncates, which makes room."""
        if self.path.exists() and self.path.stat().st_size > self.limit_bytes:
            with suppress(OSError):
                shutil.copyfile(self.path, self.path.with_suffix(".log.1"))
            os.truncate(self.path, 0)

    def tail(self, count: int = 5) -> str:
        """The last lines, for an error message."""
        if not self.path.exists():
            return ""
        with self.path.open("rb") as file:
            file.seek(max(0, self.path.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-count:])
