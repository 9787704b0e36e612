"""The command line of the jobs: `python -m gapless_spark export|analyze`."""

from __future__ import annotations

import importlib
import inspect
import os
import warnings
from typing import Any

import typer
from typer.core import TyperCommand

from gapless_spark._version import __version__

COMMANDS = ("export", "analyze")


class Command(TyperCommand):
    """A command whose examples are shown as they are written. The framework would join them to paragraphs."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.epilog:
            formatter.write("\n" + inspect.cleandoc(self.epilog) + "\n")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"gapless-spark {__version__}")
        raise typer.Exit


def _jobs(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Export a Gapless log with Spark, and analyse it."""


def make() -> typer.Typer:
    """The application, a command for each job."""
    app = typer.Typer(
        name="gapless_spark",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_jobs)
    for name in COMMANDS:
        importlib.import_module(f"gapless_spark.{name}.command").add(app)
    for info in app.registered_commands:
        info.cls = Command
    return app


def main() -> None:
    """Run the command line."""
    # Spark warns whenever pandas is newer than it knows; nothing here uses it.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"pyspark\..*")
    make()(prog_name=os.environ.get("GAPLESS_PROGRAM", "gapless_spark"))
