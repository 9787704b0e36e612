"""`analyze` on the command line. Spark is imported when the command runs, not for its help."""

from __future__ import annotations

import importlib
import os
import threading
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gapless_spark.analyze.question import LIVE, Fields, Question, json_path, parse_zone
from gapless_spark.errors import GaplessSparkError, exit_code
from gapless_spark.moments import parse_span, parse_time
from gapless_spark.places import check_address, local, local_or_address

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = """
Examples:

  gapless analyze --report report.html
  gapless analyze --from /data/export --report report.html --tables /data/tables
  gapless analyze --channels 'chat.>' --since 7d --timezone Europe/Berlin --report week.html
  gapless analyze --from /data/gitter --sender-field user --time-field sent_at --report gitter.html

Exit codes: 0 done; 1 failed; 2 wrong usage; 3 the database cannot be reached or refuses.
"""


TRACEBACK = "GAPLESS_TRACEBACK"


DATABASE_URL = typer.Option(
    "--database-url",
    "--url",
    envvar="GAPLESS_DATABASE_URL",
    help="Postgres, for the live log and for statistics of deliveries.",
)


def add(app: typer.Typer) -> None:
    """Add the command `analyze` to `app`."""
    app.command("analyze", short_help="Count and plot a log's messages, as one HTML page.", epilog=EXAMPLES)(
        analyze
    )


def analyze(
    report: Annotated[str, typer.Option(metavar="FILE", help="The HTML page to write.")] = "report.html",
    source: Annotated[
        str,
        typer.Option("--from", metavar="EXPORT_DIR|live", help="A folder of the export, or the live log."),
    ] = LIVE,
    tables: Annotated[str | None, typer.Option(help="A folder for the tables, as Parquet.")] = None,
    url: Annotated[str | None, DATABASE_URL] = None,
    namespace: Annotated[str, typer.Option(help="The namespace.")] = "default",
    channels: Annotated[str | None, typer.Option(help="Channels or patterns, with commas between.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Only from this time on: ISO 8601, or an age: 7d.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Only before this time.")] = None,
    session_gap: Annotated[str, typer.Option(help="A longer silence ends a session.")] = "30m",
    reply_within: Annotated[str, typer.Option(help="A later message is not a reply.")] = "1h",
    timezone: Annotated[str, typer.Option(help="The time zone of hours and days.")] = "UTC",
    top: Annotated[
        int, typer.Option(min=1, max=200, help="Rows of the tables of channels and senders.")
    ] = 20,
    text_field: Annotated[str, typer.Option(help="Field of data with the text; empty: none.")] = "text",
    sender_field: Annotated[
        str | None, typer.Option(help="Field of data with the sender, in place of the message's own.")
    ] = None,
    time_field: Annotated[
        str | None,
        typer.Option(help="Field of data with the time (ISO 8601, or since 1970), in place of created_at."),
    ] = None,
    title: Annotated[str, typer.Option(help="The page's title.")] = "Gapless report",
    master: Annotated[
        str, typer.Option(help="Where Spark runs: local[*], spark://host:port, sc://host:port.")
    ] = ("local[*]"),
    conf: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of Spark.")] = None,
) -> None:
    """Count the messages of a log or of an export, and write the results as one HTML page and as tables.

    Volume, busiest hours, publish rates, senders, sessions, replies and words come from the messages. Lag,
    delivery attempts and dead letters come from the database, if one is given.
    """
    from rich.console import Console

    console = Console(stderr=True)
    try:
        now = datetime.now(UTC)
        question = Question(
            source=source if source == LIVE else local_or_address(source, "--from"),
            url=url or None,
            namespace=namespace,
            channels=channels or None,
            since=parse_time(since, "--since", now),
            until=parse_time(until, "--until", now),
            fields=Fields(
                _field(text_field, "--text-field"),
                _field(sender_field, "--sender-field"),
                _field(time_field, "--time-field"),
            ),
            session_gap_s=parse_span(session_gap, "--session-gap"),
            reply_within_s=parse_span(reply_within, "--reply-within"),
            timezone=parse_zone(timezone),
            top=top,
        )
        if tables is not None:
            tables = local_or_address(tables, "--tables")
        _run(console, question, now, local(report, "--report"), tables, title, master, conf)
    except Exception as error:  # noqa: BLE001 (a command reports every error in one line)
        raise typer.Exit(_failed(console, error)) from None


def _failed(console: Console, error: Exception) -> int:
    """Print the error in one line. Returns the exit code."""
    if os.environ.get(TRACEBACK):
        raise error
    known = error if isinstance(error, GaplessSparkError) else _explained(error)
    console.print(f"gapless: {known}", style="red", markup=False, highlight=False, soft_wrap=True)
    return exit_code(known)


def _explained(error: Exception) -> GaplessSparkError:
    """This package's error for an error of Spark or of another package: the one in its text, or its
    reason."""
    from gapless_spark.export.errors import on_one_line, raised_by_us, reason_of

    text = str(error)
    if ours := raised_by_us(text):
        return ours
    origin = (
        "Spark failed" if type(error).__module__.startswith(("pyspark", "py4j")) else type(error).__name__
    )
    return GaplessSparkError(f"{origin}: {on_one_line(reason_of(text))} (set {TRACEBACK}=1 to see where)")


def _run(
    console: Console,
    question: Question,
    now: datetime,
    report: Path,
    tables: str | None,
    title: str,
    master: str,
    conf: list[str] | None,
) -> None:
    from gapless_spark.analyze import page
    from gapless_spark.analyze.body import left_out
    from gapless_spark.analyze.copying import Copy
    from gapless_spark.analyze.job import analyze as run_job
    from gapless_spark.analyze.reading import check_source
    from gapless_spark.analyze.stages import Stages
    from gapless_spark.analyze.tables import check_folder
    from gapless_spark.analyze.tables import check_place as check_tables
    from gapless_spark.session import SessionOptions, conf_pairs, cores, start

    check_source(question)
    page.check_place(report)
    check_folder(tables, question.source)
    if master.startswith("local"):
        # On a cluster, the folder need not exist on this machine.
        check_tables(tables)
    stages = Stages(console)
    here = SessionOptions(master=master).here
    settings = (*(local_conf(master) if here else ()), *_quiet(master), *conf_pairs(conf))
    with ExitStack() as closing:
        copy = closing.enter_context(Copy(question, cores(master))) if here and question.live else None
        with stages.stage("Spark") as note:
            notes: list[str] = []
            closing.callback(_load_beside().join)
            named = SessionOptions("gapless-analyze", master, conf=settings)
            spark = start(replace(named, quick=here, archive=here, brief=here), notes.append)
            closing.callback(spark.stop)
            note.text = "; ".join(notes)
        check_address(spark, question.source, "--from")
        check_address(spark, tables or "", "--tables")
        findings = run_job(spark, question, now, tables, stages, copy)
    for text in left_out(findings):
        console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)
    with stages.stage("Report") as note:
        size = page.write(report, page.render(findings, title))
        note.text = f"{report}, {size / 1e6:.1f} MB"


def _load_beside() -> threading.Thread:
    """Load modules that the run needs later, while Java starts."""
    from gapless_spark.analyze import page

    def load() -> None:
        with suppress(Exception):  # the code that needs a module raises the error again
            # Spark imports pandas for all exchange as Arrow.
            for name in ("pandas", "pyarrow.parquet"):
                importlib.import_module(name)
            page.library()

    thread = threading.Thread(target=load, name="loading", daemon=True)
    thread.start()
    return thread


def local_conf(master: str) -> tuple[tuple[str, str], ...]:
    """Settings of Spark for one machine. Its defaults are for a cluster: 200 partitions, each of them a task
    and most of them empty here; and a new plan after each step, which makes each step a job."""
    from gapless_spark.session import cores

    return (
        ("spark.sql.shuffle.partitions", str(cores(master))),
        ("spark.sql.adaptive.enabled", "false"),
        # Cheaper descriptions of plans; they are not shown.
        ("spark.sql.ui.explainMode", "simple"),
    )


def _quiet(master: str) -> tuple[tuple[str, str], ...]:
    """Settings that turn Spark's log off: the command reports errors in one line, and Spark would log them
    too, with stack traces. Through Spark Connect the log is the server's."""
    ours = not master.startswith("sc://") and not os.environ.get(TRACEBACK)
    return (("spark.log.level", "OFF"),) if ours else ()


def _field(members: str | None, option: str) -> str | None:
    if members:
        json_path(members, option)
    return members or None
