"""`gapless channels`: which there are, what they keep, and an end to them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.failures import usage
from app.cli.helping import Command, Group
from app.cli.options import DEFAULT_URL, Url, seconds, whole_seconds

if TYPE_CHECKING:
    from gapless import Channel, Client, Retention

EXAMPLES = """
Examples:

  gapless channels                              a table; JSON lines when piped
  gapless channels --pattern 'chat.>'
  gapless channels show chat.lobby
  gapless channels set chat.lobby --max-age 7d --max-messages 100000 --message-ttl 12h
  gapless channels set chat.lobby --max-age none
  gapless channels delete chat.lobby --yes
"""
SET_EXAMPLES = """
Examples:

  gapless channels set chat.lobby --max-age 7d --max-messages 100000
  gapless channels set chat.lobby --message-ttl 12h
  gapless channels set chat.lobby --max-age none      no limit any more
"""
SHOW_EXAMPLES = """
Examples:

  gapless channels show chat.lobby
  gapless channels show chat.lobby | jq .last_seq
"""
DELETE_EXAMPLES = """
Examples:

  gapless channels delete chat.lobby           asks first
  gapless channels delete chat.lobby --yes
"""
NONE = "none"

app = typer.Typer(cls=Group, rich_markup_mode=None, epilog=EXAMPLES)
Inner = Annotated[str | None, typer.Option("--url", help="Where the server is.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The channel.", show_default=False)]


@app.callback(invoke_without_command=True, epilog=EXAMPLES)
def channels(
    context: typer.Context,
    pattern: Annotated[str | None, typer.Option(help="Only matching names, such as chat.>")] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """List channels, or show, set up or delete one."""
    if context.invoked_subcommand is not None:
        if pattern is not None:
            raise usage("--pattern is for the list of channels")
        context.obj = url
        return
    from app.cli.connection import connected

    with connected(url) as client:
        _show(client.channels(pattern, page_size=1000))


@app.command("show", cls=Command, epilog=SHOW_EXAMPLES)
def show(context: typer.Context, name: Name, url: Inner = None) -> None:
    """Show where a channel stands and what it keeps."""
    from app.cli.connection import connected

    with connected(_url(context, url)) as client:
        _show([client.get_channel(name)])


@app.command("set", cls=Command, epilog=SET_EXAMPLES)
def set_(
    context: typer.Context,
    name: Name,
    max_age: Annotated[str | None, typer.Option(help="Keep messages so long: 12h, 7d, none.")] = None,
    max_messages: Annotated[str | None, typer.Option(help="Keep the newest so many; or none.")] = None,
    message_ttl: Annotated[str | None, typer.Option(help="New messages expire after: 12h, none.")] = None,
    url: Inner = None,
) -> None:
    """Change what a channel keeps; it is made if it is not there. What is not named stays as it is."""
    if max_age is max_messages is message_ttl is None:
        raise usage("say what to set: --max-age, --max-messages or --message-ttl")
    from app.cli.connection import connected

    with connected(_url(context, url)) as client:
        _show([_changed(client, name, max_age, max_messages, message_ttl)])


@app.command("delete", cls=Command, epilog=DELETE_EXAMPLES)
def delete(
    context: typer.Context,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Inner = None,
) -> None:
    """Delete a channel and all its messages, for good."""
    from app.cli.connection import connected

    with connected(_url(context, url)) as client:
        channel = client.get_channel(name)
        if not yes and not _confirmed(channel):
            typer.echo("nothing was deleted", err=True)
            raise typer.Exit(1)
        client.delete_channel(name)
        typer.echo(f"deleted {name} with {_count(channel):,} messages", err=True)


def _url(context: typer.Context, url: str | None) -> str:
    """`gapless channels --url X show` means what `gapless channels show --url X` does."""
    outer: str = context.obj
    return url or outer


def _confirmed(channel: Channel) -> bool:
    if not sys.stdin.isatty():
        raise usage(f"deleting {channel.name} needs --yes where nobody can be asked")
    return typer.confirm(f"Delete {channel.name} and its {_count(channel):,} messages for good?", err=True)


def _changed(
    client: Client, name: str, max_age: str | None, max_messages: str | None, message_ttl: str | None
) -> Channel:
    """Only what was named changes. The reading in between is not guarded against another one's change."""
    from gapless import NotFound, Retention

    try:
        now = client.get_channel(name)
        kept, ttl = now.retention, now.message_ttl
    except NotFound:
        kept, ttl = Retention(), None
    if message_ttl is not None:
        ttl = None if message_ttl == NONE else seconds(message_ttl, "--message-ttl")
    return client.put_channel(name, retention=_retention(kept, max_age, max_messages), message_ttl=ttl)


def _retention(kept: Retention, max_age: str | None, max_messages: str | None) -> Retention:
    from gapless import Retention

    age, messages = kept.max_age, kept.max_messages
    if max_age is not None:
        age = None if max_age == NONE else whole_seconds(max_age, "--max-age")
    if max_messages is not None and max_messages != NONE and not max_messages.isdecimal():
        raise usage(f"--max-messages {max_messages!r} must be a whole number or none")
    if max_messages is not None:
        messages = None if max_messages == NONE else int(max_messages)
    return Retention(age, messages)


def _count(channel: Channel) -> int:
    return max(0, channel.last_seq - channel.first_seq + 1)


def _show(channels: Iterable[Channel]) -> None:
    """A table for people, JSON lines for programs."""
    from app.cli.output import channel_json, until_closed, write_line

    with until_closed():
        if sys.stdout.isatty():
            _show_table(channels)
            return
        for channel in channels:
            write_line(channel_json(channel), flush=False)


def _show_table(channels: Iterable[Channel]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("channel", box=None, pad_edge=False, header_style="bold")
    for name in ("messages", "last seq", "last id", "max age", "max messages", "message ttl"):
        table.add_column(name, justify="right")
    for c in channels:
        limits = (_span(c.retention.max_age), _number(c.retention.max_messages), _span(c.message_ttl))
        table.add_row(c.name, _number(_count(c)), _number(c.last_seq), str(c.last_id), *limits)
    Console().print(table)


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _span(value: float | None) -> str:
    """Seconds in the largest unit that has no remainder."""
    if value is None:
        return "-"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if value >= size and value % size == 0:
            return f"{value / size:g}{unit}"
    return f"{value:g}s"
