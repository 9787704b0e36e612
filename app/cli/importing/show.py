"""What is seen of an import: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from gapless_cli.failures import say
from gapless_cli.terminal import printable_lines
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

EVERY_S = 5.0
"""Seconds between lines where there is no terminal."""


class Show:
    """One pass over one file. Everything goes to stderr."""

    def __init__(self, label: str, size: int, progress: Progress | None, task: TaskID | None) -> None:
        self._label = label
        self._size = size
        self._progress = progress
        self._task = task
        self._began = self._said = time.monotonic()

    def tell(self, text: str) -> None:
        """A line of its own, above the bar."""
        if self._progress is not None:
            line = f"gapless: {printable_lines(text)}"
            self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            say(text)

    def at(self, position: int, messages: int) -> None:
        """So many bytes of the file and so many messages of this run are done."""
        now = time.monotonic()
        rate = messages / max(now - self._began, 0.001)
        if self._progress is not None and self._task is not None:
            self._progress.update(
                self._task, completed=position, messages=f"{messages:,}", rate=f"{rate:,.0f}"
            )
        elif now - self._said >= EVERY_S:
            self._said = now
            share = 100 * position / max(self._size, 1)
            self.tell(f"{self._label}: {share:.0f} %, {messages:,} messages, {rate:,.0f} msg/s")


@contextmanager
def shown(label: str, size: int, position: int = 0) -> Iterator[Show]:
    """A bar that goes when it is done, or none where nobody would see it move."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Show(label, size, None, None)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %  {task.fields[messages]} messages  {task.fields[rate]} msg/s"),
        TextColumn("ETA"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(label, total=size, completed=position, messages="0", rate="0")
        yield Show(label, size, progress, task)
