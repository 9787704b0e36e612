"""One import: check the file, then send its batches one after the other, noting each answer on disk.

One batch is under way at a time, so the log has the order of the file, across channels too, and how far it
came is one number. While it is under way the next one is read and checked.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from gapless_cli.failures import Failure

from app.cli.importing.batches import BEGINNING, MAX_MESSAGES, Batch, batches
from app.cli.importing.lines import Bad
from app.cli.importing.send import RefusedError, Sender
from app.cli.importing.show import Show, shown
from app.cli.importing.source import Source
from app.cli.importing.state import REMEMBERED_S, Progress, StateFile, idempotency_key, identity_of

MAX_BAD_SHOWN = 20
FIRST_RUN = "1"


@dataclass(frozen=True, slots=True)
class Options:
    """`channel` is for lines without one."""

    channel: str | None
    skip_bad: bool
    again: bool


@dataclass(slots=True)
class Checked:
    """What a pass without sending found. `bad` holds the first so many of `bad_count`."""

    messages: int = 0
    channels: set[str] = field(default_factory=set)
    bad: list[Bad] = field(default_factory=list)
    bad_count: int = 0


def check(source: Source, options: Options) -> Checked:
    """Read the whole file as an import would, and send nothing."""
    found = Checked()
    with shown(f"checking {Path(source.name).name}", source.size) as show:
        for batch in batches(source, options.channel, BEGINNING):
            found.messages += len(batch.channels)
            found.channels.update(batch.channels)
            found.bad_count += len(batch.bad)
            found.bad += batch.bad[: MAX_BAD_SHOWN - len(found.bad)]
            show.at(batch.position, found.messages)
    return found


class Import:
    """One file on its way into one server. `run` gives the line that says how it went."""

    def __init__(self, source: Source, state: StateFile, sender: Sender, options: Options) -> None:
        self._source = source
        self._state = state
        self._sender = sender
        self._options = options
        self._identity = identity_of(source.digest, options.channel)
        self._replayed = 0
        self._bad_shown = 0

    def run(self) -> str:
        """Raises `Failure` with what to do about it."""
        with self._state.alone():
            progress = None if self._options.again else self._state.load()
            if progress is not None and progress.place.batch:
                self._require_same_log(progress)
            if progress is not None and progress.finished_at:
                return (
                    f"{self._source.name}: was imported already, {progress.messages:,} messages, finished"
                    f" {progress.finished_at}; nothing was published (--again imports it once more)"
                )
            return self._go_on(progress or self._begin())

    def _begin(self) -> Progress:
        """A file that has bad lines is refused whole: mended, it is another file and begins anew."""
        if not self._options.skip_bad:
            found = check(self._source, self._options)
            if found.bad:
                raise Failure(bad_lines(self._source.name, found) + ". Nothing was published")
        run = secrets.token_hex(4) if self._options.again else FIRST_RUN
        progress = Progress(self._source.name, self._sender.url, run)
        self._state.save(progress)
        return progress

    def _require_same_log(self, progress: Progress) -> None:
        assert progress.last_channel is not None
        try:
            head = self._sender.head(progress.last_channel)
        except RefusedError as error:
            raise Failure(f"{self._source.name}: {error}") from None
        if head < progress.last_id:
            raise Failure(
                f"{self._source.name}: an earlier run stored message {progress.last_id} in"
                f" {progress.last_channel}, which this server does not have: it has other data now, or the"
                " channel was deleted. --again imports the file from its beginning"
            )

    def _go_on(self, progress: Progress) -> str:
        before, began = progress.messages, time.monotonic()
        with shown(f"importing {Path(self._source.name).name}", self._source.size) as show:
            if progress.place.batch:
                show.tell(f"{self._source.name}: going on after {before:,} messages{self._doubt()}")
            for batch in _ahead(batches(self._source, self._options.channel, progress.place)):
                progress = self._step(progress, batch, show)
                show.at(batch.position, progress.messages - before)
        seconds = time.monotonic() - began
        self._state.save(replace(progress, finished_at=datetime.now(UTC).isoformat(timespec="seconds")))
        return self._summary(progress, before, seconds)

    def _doubt(self) -> str:
        """A batch that was answered and not noted is told apart by its key, as long as that is known."""
        if self._state.age_s() < REMEMBERED_S:
            return ""
        return (
            " of a run that ended more than 24 hours ago: if it was killed while a batch was under way, up to"
            f" {MAX_MESSAGES:,} messages may be stored twice"
        )

    def _step(self, progress: Progress, batch: Batch, show: Show) -> Progress:
        """One batch, and the note that it is stored: dying in between is mended by its idempotency key."""
        self._handle_bad(batch, show)
        if batch.channels:
            key = idempotency_key(self._identity, progress.run, batch.number)
            try:
                stored = self._sender.publish(batch.body, key)
            except RefusedError as error:
                raise self._refused(progress, batch, error) from None
            self._replayed += len(batch.channels) if stored.replayed else 0
            progress = replace(progress, last_channel=batch.channels[-1], last_id=stored.last_id)
        progress = replace(
            progress,
            place=batch.end,
            messages=progress.messages + len(batch.channels),
            skipped=progress.skipped + len(batch.bad),
        )
        self._state.save(progress)
        return progress

    def _handle_bad(self, batch: Batch, show: Show) -> None:
        for bad in batch.bad:
            if not self._options.skip_bad:
                raise Failure(
                    f"{self._source.name}:{bad.line}: {bad.why}. Nothing of its batch was published"
                )
            if self._bad_shown < MAX_BAD_SHOWN:
                show.tell(f"{self._source.name}:{bad.line}: {bad.why}; skipped")
            self._bad_shown += 1

    def _refused(self, progress: Progress, batch: Batch, error: RefusedError) -> Failure:
        lines = f"{progress.place.line + 1}-{batch.end.line}"
        return Failure(f"{self._source.name}:{lines}: the server refused the batch: {error}")

    def _summary(self, progress: Progress, before: int, seconds: float) -> str:
        done = progress.messages - before
        parts = [f"{progress.messages:,} messages imported"]
        if before:
            parts.append(f"{done:,} of them in this run")
        if self._replayed:
            parts.append(f"{self._replayed:,} were stored already by a run before and not stored again")
        if progress.skipped:
            parts.append(f"{progress.skipped:,} bad lines skipped")
        parts.append(f"{seconds:.1f} s, {done / max(seconds, 0.001):,.0f} msg/s")
        return f"{self._source.name}: " + ", ".join(parts)


def bad_lines(name: str, found: Checked) -> str:
    """Each bad line that is shown, and how many there are."""
    lines = [f"{name}:{bad.line}: {bad.why}" for bad in found.bad]
    total = "1 bad line" if found.bad_count == 1 else f"{found.bad_count:,} bad lines"
    return "\n".join([*lines, f"{name}: {total} (--skip-bad leaves them out)"])


def _ahead(these: Iterator[Batch]) -> Iterator[Batch]:
    """The same batches, each made while the one before it is dealt with."""
    with ThreadPoolExecutor(1) as pool:
        upcoming = pool.submit(next, these, None)
        while (batch := upcoming.result()) is not None:
            upcoming = pool.submit(next, these, None)
            yield batch
