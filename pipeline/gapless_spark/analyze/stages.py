"""Progress on the terminal: one line a stage, with what it found and how long it took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


class Note:
    """What a stage has to say at its end."""

    text = ""


class Stages:
    """Shows stages as they run. Without a console nothing is shown."""

    def __init__(self, console: Console | None) -> None:
        self._console = console

    @contextmanager
    def stage(self, name: str) -> Iterator[Note]:
        """`with stages.stage("Volume") as note: …; note.text = "521 channels"`."""
        note = Note()
        began = time.monotonic()
        if self._console is None:
            yield note
            return
        with self._console.status(f"{name} …"):
            yield note
        self._console.print(
            f"{name:<10} {time.monotonic() - began:6.1f} s  {note.text}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
