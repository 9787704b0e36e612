"""Shared by the groups of commands: the server's address, and questions before something is removed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gapless_cli.failures import usage

Inner = Annotated[str | None, typer.Option("--url", help="Where the server is.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON lines, also on a terminal.")]

IfMatch = Annotated[str | None, typer.Option(metavar="TAG", help="Only if it still has this etag; * is any.")]


def tag_of(if_match: str | None) -> str | None:
    """The tag as the header needs it. The quotes may be missing in `if_match`."""
    if if_match is None or if_match == "*" or '"' in if_match:
        return if_match
    return f'"{if_match}"'


def url_of(context: typer.Context, url: str | None) -> str:
    """`gapless channels --url X show` means what `gapless channels show --url X` does."""
    outer: str = context.obj
    return url or outer


def confirm(yes: bool, doing: str, question: str) -> None:
    """Ask on a terminal. Ends the command if the answer is no, or if there is no terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise usage(f"{doing} needs --yes if there is no terminal to ask on")
    if not typer.confirm(question, err=True):
        typer.echo("nothing was done", err=True)
        raise typer.Exit(1)
