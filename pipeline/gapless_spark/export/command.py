"""`export` on the command line. Spark is imported when the command runs, not for its help."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from gapless_spark.errors import BadOption, GaplessSparkError, exit_code
from gapless_spark.export.errors import (
    DiskFull,
    FolderBusy,
    FolderRefused,
    FolderTaken,
    OtherExport,
    from_os,
    on_one_line,
)
from gapless_spark.export.options import FORMATS, ExportOptions, Format, Shape
from gapless_spark.places import local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gapless_spark.export.progress import Shown
    from gapless_spark.session import SessionOptions

EXAMPLES = """
Examples:

  gapless export --to ./export                      everything, as Parquet by day
  gapless export --to ./export                      again: messages since then
  gapless export --to ./export --latest ./latest    and the messages after all changes in ./latest/current
  gapless export --to ./export --follow             go on with new messages, until Ctrl-C
  gapless export --to ./chat --channels 'chat.>,news.*' --since 30d --by-channel
  gapless export --to ./delta --format delta --follow --interval 60
  gapless export --to /shared/lake --master spark://host:7077 --executor-memory 2g
  gapless export --to ./export --dry-run            show what it would do

Each message is in the export once, even if a process is killed at any time. Ctrl-C or SIGTERM ends it after
the current batch, a second one at once; in both cases the next run goes on. On a cluster all machines must
share the folder. A run over an existing export takes --format, --channels, --since, --until, --by-channel
and --namespace from it.

Exit codes: 0 done, or a follower was stopped; 1 failed; 2 wrong usage, or the folder holds another export
or something else; 3 the database cannot be reached or refuses; 4 retention removed messages first; 5 disk
full or folder not writable; 6 another export writes there; 130 interrupted before everything was there.
"""
_CODES: dict[type[GaplessSparkError], int] = {
    OtherExport: 2,
    FolderTaken: 2,
    DiskFull: 5,
    FolderRefused: 5,
    FolderBusy: 6,
}
INTERRUPTED = 130
TRACEBACK = "GAPLESS_TRACEBACK"


def add(app: typer.Typer) -> None:
    """Add the command `export` to `app`."""
    app.command(
        "export", short_help="Write the log as Parquet, Delta or Iceberg, exactly once.", epilog=EXAMPLES
    )(export)


def export(
    to: Annotated[str, typer.Option(metavar="DIR", help="The folder of the export; created if missing.")],
    format_: Annotated[
        str | None,
        typer.Option("--format", metavar="|".join(FORMATS), help="The format of the files [parquet]."),
    ] = None,
    channels: Annotated[
        list[str] | None, typer.Option(help="Only these channels and patterns; commas, or repeated.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Only from this time on: RFC 3339, or an age: 7d.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Only before this time.")] = None,
    by_channel: Annotated[
        bool | None, typer.Option("--by-channel", help="In each day's folder, a folder per channel.")
    ] = None,
    latest: Annotated[str | None, typer.Option(metavar="DIR", help="Also the latest view.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with new messages.")] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, help="Seconds a follower waits between batches.")
    ] = 10.0,
    master: Annotated[
        str, typer.Option(help="Where Spark runs: local[*], spark://host:port, sc://host:port.")
    ] = "local[*]",
    namespace: Annotated[str | None, typer.Option(help="The namespace [default].")] = None,
    database_url: Annotated[
        str | None, typer.Option(envvar="GAPLESS_DATABASE_URL", help="The Postgres of Gapless.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be exported.")] = False,
    ignore_data_loss: Annotated[
        bool, typer.Option("--ignore-data-loss", help="Go on if retention removed some first.")
    ] = False,
    batch_rows: Annotated[int, typer.Option(min=1, help="Messages per batch, about.")] = 5_000_000,
    file_bytes: Annotated[int, typer.Option(min=65_536, help="Size of files, about.")] = 128 * 1024 * 1024,
    tasks: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Tasks of a batch [one per core].")
    ] = None,
    driver_memory: Annotated[str | None, typer.Option(help="Memory of Spark's driver, such as 2g.")] = None,
    executor_memory: Annotated[str | None, typer.Option(help="Memory per executor, such as 1g.")] = None,
    conf: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of Spark.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only errors.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="One JSON line per batch, on stdout.")] = False,
) -> None:
    """Write the log into a folder, each message exactly once, and go on from there with each further run."""
    from gapless_spark.export.progress import choose
    from gapless_spark.session import SessionOptions, conf_pairs, cores

    show = choose(quiet=quiet, as_json=json_)
    try:
        pairs = conf_pairs(conf)
        session = SessionOptions("gapless-export", master, driver_memory, executor_memory, pairs, quick=True)
        root, now = local(to, "--to"), datetime.now(UTC)
        options = ExportOptions(
            url=_required(database_url),
            root=root,
            shape=Asked(format_, channels, since, until, by_channel, namespace).shape(root, now),
            follow=follow,
            interval_s=interval,
            batch_rows=batch_rows,
            file_bytes=file_bytes,
            tasks=tasks or cores(master),
            allow_loss=ignore_data_loss,
            latest=_beside(latest, root, follow),
        )
        code = _preview(options, as_json=json_) if dry_run else _run(options, session, show)
    except Exception as error:  # noqa: BLE001 (a command reports every error in one line)
        show.close()
        code = _failed(error)
    raise typer.Exit(code)


def _beside(latest: str | None, root: Path, follow: bool) -> Path | None:
    """The folder of the table `latest`. Raises `BadOption`."""
    from gapless_spark.export.view import check_place

    if latest is None:
        return None
    if follow:
        raise BadOption("--latest: is made anew by each run; run without --follow, from a timer")
    place = local(latest, "--latest")
    check_place(place, root)
    return place


def _failed(error: Exception) -> int:
    """Print the error in one line. Returns the exit code."""
    if isinstance(error, GaplessSparkError):
        _say(str(error))
        return next((code for kind, code in _CODES.items() if isinstance(error, kind)), exit_code(error))
    if os.environ.get(TRACEBACK):
        raise error
    _say(f"unexpected {type(error).__name__}: {on_one_line(str(error))} (set {TRACEBACK}=1 to see where)")
    return 1


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command line for the export's shape. None: not given."""

    format: str | None
    channels: list[str] | None
    since: str | None
    until: str | None
    by_channel: bool | None
    namespace: str | None

    def shape(self, root: Path, now: datetime) -> Shape:
        """The shape of the export in `root`, or of a new one. Raises `BadOption`, and `OtherExport` if a
        given option differs from that of the export in `root`."""
        from gapless_spark.export.folder import HIDDEN
        from gapless_spark.export.ledger import read_charter
        from gapless_spark.moments import is_age, parse_time
        from gapless_spark.selection import Selection, parse_patterns

        if self.format is not None and self.format not in FORMATS:
            raise BadOption(f"--format: {self.format!r} is none of {', '.join(FORMATS)}")
        format_: Format | None = self.format
        patterns = parse_patterns(",".join(self.channels)) if self.channels else None
        since, until = parse_time(self.since, "--since", now), parse_time(self.until, "--until", now)
        path = root / HIDDEN / "export.json"

        def again(text: str | None, asked: datetime | None, found: datetime | None) -> datetime | None:
            # The first run turned an age into a time, which stays as it is.
            return found if found is not None and is_age(text or "") else asked

        try:
            if not path.is_file():
                selection = Selection(self.namespace or "default", patterns or (), since, until)
                return Shape(format_ or "parquet", bool(self.by_channel), selection)
            there = read_charter(path).shape
        except OSError as error:
            raise from_os(error, str(root)) from error
        for name, asked, found in (
            ("--format", format_, there.format),
            ("--by-channel", self.by_channel, there.by_channel),
            ("--namespace", self.namespace, there.selection.namespace),
            ("--channels", patterns, there.selection.patterns),
            ("--since", again(self.since, since, there.selection.since), there.selection.since),
            ("--until", again(self.until, until, there.selection.until), there.selection.until),
        ):
            if asked is not None and asked != found:
                raise OtherExport(
                    f"{root} was begun with {name} {_worded(found)}: leave {name} out to continue it, or give"
                    " a new folder"
                )
        return there


def _worded(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(value) or "(all)"
    return "(none)" if value in (None, False) else "(set)" if value is True else str(value)


def _run(options: ExportOptions, session: SessionOptions, show: Shown) -> int:
    from gapless_spark.export.job import Export

    stop = threading.Event()
    started: list[SparkSession] = []

    def spark() -> SparkSession:
        from gapless_spark.session import start

        made = start(session, show.note)
        # Spark's start installs its own signal handlers, so ours are installed again.
        _listen(stop, show)
        started.append(made)
        return made

    _listen(stop, show)
    try:
        export_ = Export(options, spark, show, stop)
        last = export_.run()
    except KeyboardInterrupt:
        show.close()
        _say("interrupted; run the same command again to continue")
        return INTERRUPTED
    finally:
        for made in started:
            _end(made)
    show.close()
    totals = last.totals
    show.note(f"{totals.rows:,} messages up to id {last.upper} in {totals.files:,} files, {options.root}")
    if not export_.complete and not options.follow:
        _say("stopped before everything was exported; run the same command again to continue")
        return INTERRUPTED
    return 0


def _end(session: SparkSession) -> None:
    """Stop Spark, ignoring Ctrl-C and errors: the export is on disk already."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(Exception):
        session.stop()


def _listen(stop: threading.Event, show: Shown) -> None:
    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        show.note("ending after this batch; another signal ends it at once")

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


def _preview(options: ExportOptions, *, as_json: bool) -> int:
    from gapless_spark.export.preview import look, sentences
    from gapless_spark.export.progress import write_json_line

    found = look(options)
    if as_json:
        write_json_line(found)
    else:
        for sentence in sentences(found):
            print(sentence)
    return 0


def _required(url: str | None) -> str:
    if not url:
        raise BadOption(
            "--database-url (or GAPLESS_DATABASE_URL) is missing; give postgresql://user@host/database"
        )
    return url


def _say(text: str) -> None:
    print(f"gapless: {text}", file=sys.stderr, flush=True)
