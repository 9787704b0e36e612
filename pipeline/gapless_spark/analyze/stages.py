"""Shows progress on the terminal: a line for each stage, with its result and its duration."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status


class Note:
    """The result of a stage as text, shown when it ends."""

    text = ""


class Stages:
    """Shows stages as they run, from any thread. Without a console nothing is shown."""

    def __init__(self, console: Console | None) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._running: list[str] = []
        self._status: Status | None = None

    @contextmanager
    def stage(self, name: str) -> Iterator[Note]:
        """`with stages.stage("Volume") as note: …; note.text = "521 channels"`."""
        note = Note()
        began = time.monotonic()
        if self._console is None:
            yield note
            return
        self._show(self._running.append, name)
        try:
            yield note
        finally:
            self._show(self._running.remove, name)
        self._console.print(
            f"{name:<10} {time.monotonic() - began:6.1f} s  {note.text}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )

    def _show(self, change: Callable[[str], None], name: str) -> None:
        """Show the names of all running stages in one status line."""
        assert self._console is not None
        with self._lock:
            change(name)
            text = f"{', '.join(self._running)} …"
            if not self._running and self._status is not None:
                self._status.stop()
                self._status = None
            elif self._status is not None:
                self._status.update(text)
            elif self._running:
                self._status = self._console.status(text)
                self._status.start()
