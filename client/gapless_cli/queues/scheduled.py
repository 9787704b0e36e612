"""`gapless scheduled`: lists, cancels and promotes messages that are still to be published."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gapless_cli.groups import AsJson, Inner, url_of
from gapless_cli.helping import Command, Group
from gapless_cli.limits import MAX_PAGE
from gapless_cli.options import DEFAULT_URL, Url

if TYPE_CHECKING:
    from gapless import Scheduled

EXAMPLES = """
Examples:

  gapless publish mails '{"to": "ann"}' --delay 1h       schedules one
  gapless scheduled                                      a table; JSON lines when piped
  gapless scheduled cancel 17
  gapless scheduled promote 17
"""
LIST_EXAMPLES = """
Examples:

  gapless scheduled list --channel mails
  gapless scheduled list --json | jq .deliver_at
"""
SHOW_EXAMPLES = """
Examples:

  gapless scheduled show 17
"""
CANCEL_EXAMPLES = """
Examples:

  gapless scheduled cancel 17 18

A message that was published already cannot be cancelled: that is an error.
"""
PROMOTE_EXAMPLES = """
Examples:

  gapless scheduled promote 17       publishes it now and prints its place
"""

app = typer.Typer(cls=Group, rich_markup_mode=None, epilog=EXAMPLES)
Ids = Annotated[list[str], typer.Argument(metavar="ID", help="The scheduled messages.", show_default=False)]


@app.callback(invoke_without_command=True, epilog=EXAMPLES)
def scheduled(context: typer.Context, url: Url = DEFAULT_URL) -> None:
    """List scheduled messages, or cancel or promote them."""
    context.obj = url
    if context.invoked_subcommand is None:
        _list(url, None, as_json=False)


@app.command("list", cls=Command, epilog=LIST_EXAMPLES)
def list_(
    context: typer.Context,
    channel: Annotated[str | None, typer.Option(help="Only to this channel.")] = None,
    as_json: AsJson = False,
    url: Inner = None,
) -> None:
    """List messages that are still to be published."""
    _list(url_of(context, url), channel, as_json=as_json)


@app.command("show", cls=Command, epilog=SHOW_EXAMPLES)
def show(
    context: typer.Context,
    scheduled_id: Annotated[str, typer.Argument(metavar="ID", help="The message.", show_default=False)],
    as_json: AsJson = False,
    url: Inner = None,
) -> None:
    """Show a scheduled message."""
    from gapless_cli.connection import connected
    from gapless_cli.queues.shapes import scheduled_json
    from gapless_cli.tables import show_one

    with connected(url_of(context, url)) as client:
        show_one(scheduled_json(client.scheduled.get(scheduled_id)), as_json=as_json)


@app.command("cancel", cls=Command, epilog=CANCEL_EXAMPLES)
def cancel(context: typer.Context, ids: Ids, url: Inner = None) -> None:
    """Remove scheduled messages unpublished."""
    from gapless_cli.connection import connected

    with connected(url_of(context, url)) as client:
        for each in ids:
            client.scheduled.cancel(each)
            typer.echo(f"cancelled {each}", err=True)


@app.command("promote", cls=Command, epilog=PROMOTE_EXAMPLES)
def promote(context: typer.Context, ids: Ids, url: Inner = None) -> None:
    """Publish scheduled messages now. Print the place of each as JSON on one line."""
    from gapless_cli.connection import connected
    from gapless_cli.output import published_json, until_closed, write_line

    with until_closed(), connected(url_of(context, url)) as client:
        for each in ids:
            write_line(published_json(client.scheduled.promote(each)))


def _list(url: str, channel: str | None, *, as_json: bool) -> None:
    import msgspec

    from gapless_cli.connection import connected
    from gapless_cli.output import data_json
    from gapless_cli.queues.shapes import scheduled_json
    from gapless_cli.tables import Column, short, show, when

    columns: list[Column[Scheduled]] = [
        Column("id", lambda s: s.scheduled_id, True),
        Column("channel", lambda s: s.channel),
        Column("due", lambda s: (s.refused or "withheld") if s.withheld else when(s.deliver_at)),
        Column("type", lambda s: s.type or "-"),
        Column("key", lambda s: s.key or "-"),
        Column("data", lambda s: short(msgspec.json.encode(data_json(s.data)).decode())),
    ]
    with connected(url) as client:
        show(client.scheduled.list(channel, page_size=MAX_PAGE), scheduled_json, columns, as_json=as_json)
