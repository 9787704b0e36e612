"""Reports the progress of a long export: a bar on a terminal, lines elsewhere, JSON for programs.

JSON goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from gapless_spark.export.job import Progress
    from gapless_spark.export.ledger import Entry

MEBIBYTE = 1024 * 1024
_LINE_EVERY_S = 1.0


class Shown(Protocol):
    """Shows what the job reports, until it is closed."""

    def note(self, text: str) -> None: ...
    def begin(self, entry: Entry, behind: int) -> None: ...
    def writing(self, staged_bytes: int) -> None: ...
    def batch(self, progress: Progress) -> None: ...
    def idle(self) -> None: ...
    def close(self) -> None: ...


class Silent:
    """Shows nothing. Errors are printed elsewhere."""

    def note(self, text: str) -> None:
        pass

    def begin(self, entry: Entry, behind: int) -> None:
        pass

    def writing(self, staged_bytes: int) -> None:
        pass

    def batch(self, progress: Progress) -> None:
        pass

    def idle(self) -> None:
        pass

    def close(self) -> None:
        pass


class Lines(Silent):
    """A line per batch, at most one per second; the next line includes skipped batches."""

    def __init__(self, out: TextIO = sys.stderr) -> None:
        self._out = out
        self._rows = 0
        self._seconds = 0.0
        self._said_at = -_LINE_EVERY_S
        self._waiting: Progress | None = None

    def note(self, text: str) -> None:
        print(f"gapless: {text}", file=self._out, flush=True)

    def begin(self, entry: Entry, behind: int) -> None:
        verb = "resuming" if entry.number else "starting"
        self.note(f"{verb} after id {entry.upper}, up to {behind:,} messages to export")

    def batch(self, progress: Progress) -> None:
        self._rows += progress.entry.rows
        self._seconds += progress.seconds
        self._waiting = progress
        if time.monotonic() - self._said_at >= _LINE_EVERY_S:
            self._say()

    def idle(self) -> None:
        self._say()

    def close(self) -> None:
        self._say()

    def _say(self) -> None:
        if self._waiting is None:
            return
        entry, behind = self._waiting.entry, self._waiting.behind
        rate = self._rows / max(self._seconds, 1e-9)
        lag = f"{behind:,} behind" if behind else "up to date"
        self.note(f"{self._rows:,} messages up to id {entry.upper}, {rate:,.0f} rows/s, {lag}")
        self._rows, self._seconds, self._waiting = 0, 0.0, None
        self._said_at = time.monotonic()


class Json(Silent):
    """A line of JSON per batch, on stdout; notes are lines on stderr."""

    def note(self, text: str) -> None:
        print(f"gapless: {text}", file=sys.stderr, flush=True)

    def batch(self, progress: Progress) -> None:
        entry = progress.entry
        write_json_line(
            {
                "batch": entry.number,
                "after": entry.lower,
                "upto": entry.upper,
                "rows": entry.rows,
                "seconds": round(progress.seconds, 3),
                "behind": progress.behind,
                "total": {
                    "rows": entry.totals.rows,
                    "files": entry.totals.files,
                    "bytes": entry.totals.bytes,
                },
            }
        )


class Bar(Silent):
    """A bar with rows, rows a second and lag, for a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._bar: RichProgress = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[rows]:>14} rows"),
            TextColumn("{task.fields[rate]:>12}"),
            TextColumn("{task.fields[lag]}"),
            TextColumn("[dim]{task.fields[staged]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self._task: TaskID | None = None
        self._done = 0
        self._began_at = time.monotonic()

    def note(self, text: str) -> None:
        self._bar.console.print(f"gapless: {text}", markup=False, highlight=False)

    def begin(self, entry: Entry, behind: int) -> None:
        self._began_at = time.monotonic()
        self._task = self._bar.add_task(
            "", total=behind or None, rows="0", rate="", lag=_lag(behind), staged=""
        )
        self._bar.start()

    def writing(self, staged_bytes: int) -> None:
        self._update(staged=f"+ {staged_bytes / MEBIBYTE:,.0f} MiB")

    def batch(self, progress: Progress) -> None:
        self._done += progress.entry.rows
        rate = progress.entry.rows / max(progress.seconds, 1e-9)
        self._update(
            completed=self._done,
            total=self._done + progress.behind,
            rows=f"{self._done:,}",
            rate=f"{rate:,.0f} rows/s",
            lag=_lag(progress.behind),
            staged="",
        )

    def idle(self) -> None:
        self._update(rate="waiting", lag=_lag(0))

    def close(self) -> None:
        self._bar.stop()

    def _update(self, **fields: Any) -> None:
        if self._task is not None:
            self._bar.update(self._task, **fields)


def _lag(behind: int) -> str:
    return f"{behind:,} behind" if behind else "up to date"


def write_json_line(value: Any) -> None:
    """Print a value as one line of JSON and flush it."""
    print(json.dumps(value), flush=True)


def choose(*, quiet: bool, as_json: bool) -> Shown:
    """The way to report: JSON or nothing if asked, else a bar on a terminal and lines elsewhere."""
    if as_json:
        return Json()
    if quiet:
        return Silent()
    return Bar() if sys.stderr.isatty() else Lines()
