"""`gapless export` and `gapless analyze`: the jobs of the Spark package on this installation's database.

The package and the service do not depend on each other. The job runs as its own program and gets the database
in a variable. If the embedded Postgres does not run, it is started for the time of the job.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import subprocess
import sys
from types import FrameType
from typing import TYPE_CHECKING

import typer
from gapless_cli.failures import Failure, say

from app import launch
from app.cli.settings import settings_from

if TYPE_CHECKING:
    from app.process.settings import Settings

URL = "GAPLESS_DATABASE_URL"
_PR_SET_PDEATHSIG = 1
FORWARDED = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def export(context: typer.Context) -> None:
    """Write the log as Parquet, Delta or Iceberg, exactly once."""
    _hand_over("export", context.args)


def analyze(context: typer.Context) -> None:
    """Count and plot the messages of a log or of an export."""
    _hand_over("analyze", context.args)


def _hand_over(job: str, arguments: list[str]) -> None:
    """Run the job in place of this process, or as its child while this process keeps a Postgres running."""
    command = [*launch.command("gapless_spark"), job, *arguments]
    if not arguments and job == "export":
        command.append("--help")
    if {"-h", "--help"} & set(command) or _names_a_database(arguments):
        _replace(command, {})
    if importlib.util.find_spec("pyspark") is None:
        raise Failure(f"Spark is not installed here: run it as ./gapless {job}, which installs it")
    settings = settings_from()
    if settings.database_url is not None:
        _replace(command, {URL: settings.database_url})
    raise typer.Exit(_with_embedded(settings, command))


def _names_a_database(arguments: list[str]) -> bool:
    return any(argument.partition("=")[0] in ("--database-url", "--url") for argument in arguments)


def _replace(command: list[str], more: dict[str, str]) -> None:
    os.execve(command[0], command, _environment(more))  # noqa: S606 (our own interpreter)


def _environment(more: dict[str, str]) -> dict[str, str]:
    """This process' variables, a path on which Spark's workers find only the package, and the database's URL.
    The URL is a variable because all users of the machine can read arguments."""
    return {
        **os.environ,
        "PYTHONPATH": str(launch.FOLDERS["gapless_spark"]),
        "PYTHONSAFEPATH": "1",
        "GAPLESS_PROGRAM": "gapless",
        **more,
    }


def _with_embedded(settings: Settings, command: list[str]) -> int:
    """Runs the job and returns its exit code. It uses the Postgres of a running service, else starts one."""
    from app.cli.doctor.home import read_home
    from app.embedded import EmbeddedError, EmbeddedPostgres, HomeLock

    home = settings.home.absolute()
    try:
        postgres = EmbeddedPostgres(home)
        if read_home(postgres.home).holder is not None:
            _replace(command, {URL: postgres.service_url})
        lock = HomeLock(postgres.home)
        lock.take()
        say(f"no {URL} and no service on {home}: using its Postgres for as long as this takes")
        try:
            postgres.start()
            _migrate(postgres.owner_url, postgres.admin_url)
            return _run(command, {URL: postgres.service_url})
        finally:
            postgres.stop()
            lock.release()
    except EmbeddedError as error:
        raise Failure(str(error)) from None


def _migrate(url: str, admin_url: str) -> None:
    """Migrates the data, which may be of an older version, or missing if the home is new."""
    import asyncio

    from db.migrate import MigrationError, migrate

    try:
        asyncio.run(migrate(url, admin_url=admin_url))
    except MigrationError as error:
        raise Failure(str(error)) from None


def _end_with_parent() -> None:
    """Ends the job with its parent (Linux). Its Postgres ends then, too, and would not come back."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _run(command: list[str], more: dict[str, str]) -> int:
    """Run the job as a child. It gets Ctrl-C from the terminal itself, and SIGTERM through this process."""
    process = subprocess.Popen(command, env=_environment(more), preexec_fn=_end_with_parent)

    def pass_on(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = process.wait()
    return code if code >= 0 else 128 - code
