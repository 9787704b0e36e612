"""The command line of the jobs: `python -m gapless_spark export|analyze`."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import warnings
from typing import Any, cast

import typer
from typer.core import TyperCommand

from gapless_spark._version import __version__

COMMANDS = ("export", "analyze")


class PlainRows:
    """Names the values of options in plain words, where newer versions of Typer show Python types."""

    NAMES = ((r"<(list\[)?str\]?>", "TEXT"), (r"<(int|float)( range)?>", "NUMBER"), ("<path>", "PATH"))

    def __init__(self, formatter: Any) -> None:
        self._formatter = formatter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._formatter, name)

    def write_dl(self, rows: Any, *arguments: Any, **options: Any) -> None:
        """Writes the rows with plain names."""
        self._formatter.write_dl([(self._plain(name), text) for name, text in rows], *arguments, **options)

    def _plain(self, name: str) -> str:
        for pattern, word in self.NAMES:
            name = re.sub(pattern, word, name)
        return name


class Command(TyperCommand):
    """A command whose examples are shown unchanged. Typer would join them to paragraphs."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, cast(Any, PlainRows(formatter)))

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
    """Export a Gapless log with Spark, or analyze it."""


def make() -> typer.Typer:
    """The application, with a command for each job."""
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
    # Spark warns if pandas is newer than it knows; nothing here uses pandas.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"pyspark\..*")
    make()(prog_name=os.environ.get("GAPLESS_PROGRAM", "gapless_spark"))
