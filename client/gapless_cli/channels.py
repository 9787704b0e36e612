"""`gapless channels`: lists channels, changes their settings, and deletes them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from gapless_cli.failures import usage
from gapless_cli.groups import AsJson, IfMatch, Inner, Yes, confirm, tag_of, url_of
from gapless_cli.helping import Command, Group
from gapless_cli.limits import MAX_PAGE
from gapless_cli.options import DEFAULT_URL, Url, seconds, whole_seconds

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
  gapless channels set chat.lobby --max-age none      removes the limit
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
ATTEMPTS = 5

app = typer.Typer(cls=Group, rich_markup_mode=None, epilog=EXAMPLES)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The channel.", show_default=False)]


@app.callback(invoke_without_command=True, epilog=EXAMPLES)
def channels(
    context: typer.Context,
    pattern: Annotated[str | None, typer.Option(help="Only names that match, such as chat.>")] = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """List channels, or show, set up or delete one."""
    if context.invoked_subcommand is not None:
        if pattern is not None or as_json:
            raise usage("--pattern and --json are for the list of channels")
        context.obj = url
        return
    from gapless_cli.connection import connected

    with connected(url) as client:
        _show(client.channels.list(pattern, page_size=MAX_PAGE), as_json=as_json)


@app.command("show", cls=Command, epilog=SHOW_EXAMPLES)
def show(context: typer.Context, name: Name, url: Inner = None) -> None:
    """Show a channel's first and last message and its settings."""
    from gapless_cli.connection import connected

    with connected(url_of(context, url)) as client:
        _show([client.channels.get(name)])


@app.command("set", cls=Command, epilog=SET_EXAMPLES)
def set_(
    context: typer.Context,
    name: Name,
    max_age: Annotated[str | None, typer.Option(help="Keep messages this long: 12h, 7d, none.")] = None,
    max_messages: Annotated[str | None, typer.Option(help="Keep this many of the newest, or none.")] = None,
    message_ttl: Annotated[str | None, typer.Option(help="New messages expire after: 12h, none.")] = None,
    if_match: IfMatch = None,
    url: Inner = None,
) -> None:
    """Change a channel's settings. Create the channel if it is missing. Other settings stay."""
    if max_age is max_messages is message_ttl is None:
        raise usage("say what to set: --max-age, --max-messages or --message-ttl")
    from gapless_cli.connection import connected

    with connected(url_of(context, url)) as client:
        changed = _changed(client, name, max_age, max_messages, message_ttl, tag_of(if_match))
        _show([changed])


@app.command("delete", cls=Command, epilog=DELETE_EXAMPLES)
def delete(
    context: typer.Context,
    name: Name,
    if_match: IfMatch = None,
    yes: Yes = False,
    url: Inner = None,
) -> None:
    """Delete a channel and all its messages, for good."""
    from gapless_cli.connection import connected

    with connected(url_of(context, url)) as client:
        channel = client.channels.get(name)
        confirm(yes, f"deleting {name}", f"Delete {name} and its {_count(channel):,} messages for good?")
        client.channels.delete(name, if_match=tag_of(if_match))
        typer.echo(f"deleted {name} with {_count(channel):,} messages", err=True)


def _changed(
    client: Client,
    name: str,
    max_age: str | None,
    max_messages: str | None,
    message_ttl: str | None,
    if_match: str | None,
) -> Channel:
    """Changes only the named settings. If another client changes the channel between the read and the write,
    it is read again."""
    from gapless import NotFound, PreconditionFailed, Retention

    for attempt in range(1, ATTEMPTS + 1):
        kept, ttl, tag = Retention(), None, None
        with suppress(NotFound):
            now = client.channels.get(name)
            # A setting of a policy must not become the channel's own.
            own = {name for name, origin in now.origins.items() if origin == "own"}
            age, messages = now.retention.max_age, now.retention.max_messages
            kept = Retention(age if "max_age" in own else None, messages if "max_messages" in own else None)
            ttl = now.message_ttl if "message_ttl" in own else None
            tag = now.etag
        if message_ttl is not None:
            ttl = None if message_ttl == NONE else seconds(message_ttl, "--message-ttl")
        retention = _retention(kept, max_age, max_messages)
        try:
            return client.channels.put(name, retention=retention, message_ttl=ttl, if_match=if_match or tag)
        except PreconditionFailed:
            if if_match is not None or attempt == ATTEMPTS:
                raise
    raise AssertionError("an attempt returns or raises")


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


def _show(channels: Iterable[Channel], *, as_json: bool = False) -> None:
    from gapless_cli.output import channel_json
    from gapless_cli.tables import Column, number, show, span

    columns: list[Column[Channel]] = [
        Column("channel", lambda c: c.name),
        Column("messages", lambda c: number(_count(c)), True),
        Column("last seq", lambda c: number(c.last_seq), True),
        Column("last id", lambda c: str(c.last_id), True),
        Column("max age", lambda c: span(c.retention.max_age), True),
        Column("max messages", lambda c: number(c.retention.max_messages), True),
        Column("message ttl", lambda c: span(c.message_ttl), True),
    ]
    show(channels, channel_json, columns, as_json=as_json)
