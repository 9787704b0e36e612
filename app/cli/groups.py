"""What the groups of commands share: where the server is, questions before something is removed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from app.cli.failures import usage

Inner = Annotated[str | None, typer.Option("--url", help="Where the server is.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON lines, also on a terminal.")]


def url_of(context: typer.Context, url: str | None) -> str:
    """`gapless channels --url X show` means what `gapless channels show --url X` does."""
    outer: str = context.obj
    return url or outer


def confirm(yes: bool, doing: str, question: str) -> None:
    """Ask on a terminal. Ends the command where the answer is no, or where nobody can be asked."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise usage(f"{doing} needs --yes where nobody can be asked")
    if not typer.confirm(question, err=True):
        typer.echo("nothing was done", err=True)
        raise typer.Exit(1)
