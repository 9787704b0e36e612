"""`gapless dead-letters`: lists, replays and removes messages that subscriptions gave up on."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gapless_cli.failures import usage
from gapless_cli.groups import AsJson, Inner, Yes, confirm, url_of
from gapless_cli.helping import Command, Group
from gapless_cli.limits import MAX_PAGE
from gapless_cli.options import DEFAULT_URL, Url, seconds

if TYPE_CHECKING:
    from gapless import DeadLetter

EXAMPLES = """
Examples:

  gapless dead-letters                                   a table; JSON lines when piped
  gapless dead-letters list --subscription billing
  gapless dead-letters show 7
  gapless dead-letters replay 7
  gapless dead-letters purge --older-than 30d
"""
LIST_EXAMPLES = """
Examples:

  gapless dead-letters list --subscription billing --reason max_deliver
  gapless dead-letters list --channel orders.eu --limit 10
  gapless dead-letters list --json | jq -r .last_error | sort | uniq -c
"""
SHOW_EXAMPLES = """
Examples:

  gapless dead-letters show 7
  gapless dead-letters show 7 --json | jq .message.data
"""
REPLAY_EXAMPLES = """
Examples:

  gapless dead-letters replay 7 8 9
  gapless dead-letters replay --subscription billing --reason expired
  gapless dead-letters replay --subscription billing --max 100 --dry-run
  gapless dead-letters replay --all --rate 5             five of them become due each second

Only the subscription that failed a message gets it back. Its attempts count from zero again.
"""
PURGE_EXAMPLES = """
Examples:

  gapless dead-letters purge --older-than 30d            asks first
  gapless dead-letters purge --older-than 0 --subscription billing --yes
"""
DELETE_EXAMPLES = """
Examples:

  gapless dead-letters delete 7 8
  gapless dead-letters delete 7 --yes
"""

app = typer.Typer(cls=Group, rich_markup_mode=None, epilog=EXAMPLES)
Entry = Annotated[int, typer.Argument(metavar="ID", help="The entry.", show_default=False)]
Entries = Annotated[list[int], typer.Argument(metavar="ID", help="The entries.", show_default=False)]
Subscription = Annotated[str | None, typer.Option(help="Only of this subscription.")]
Channel = Annotated[str | None, typer.Option(help="Only of this channel.")]
Reason = Annotated[
    Literal["rejected", "expired", "max_deliver", "max_backlog", "hops"] | None,
    typer.Option(help="Only for this reason."),
]


@app.callback(invoke_without_command=True, epilog=EXAMPLES)
def dead_letters(context: typer.Context, url: Url = DEFAULT_URL) -> None:
    """List dead letters, or show, replay, purge or delete them."""
    context.obj = url
    if context.invoked_subcommand is None:
        _list(url, {}, None, as_json=False)


@app.command("list", cls=Command, epilog=LIST_EXAMPLES)
def list_(
    context: typer.Context,
    subscription: Subscription = None,
    channel: Channel = None,
    reason: Reason = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many [all].")] = None,
    as_json: AsJson = False,
    url: Inner = None,
) -> None:
    """List the messages that subscriptions gave up on, oldest first."""
    which = _which(subscription, channel, reason)
    _list(url_of(context, url), which, limit, as_json=as_json)


@app.command("show", cls=Command, epilog=SHOW_EXAMPLES)
def show(context: typer.Context, entry: Entry, as_json: AsJson = False, url: Inner = None) -> None:
    """Show an entry with its message, its last error and its whole journey."""
    from gapless_cli.connection import connected
    from gapless_cli.queues.shapes import dead_letter_json
    from gapless_cli.tables import show_one

    with connected(url_of(context, url)) as client:
        show_one(dead_letter_json(client.dead_letters.get(entry)), as_json=as_json)


@app.command("replay", cls=Command, epilog=REPLAY_EXAMPLES)
def replay(
    context: typer.Context,
    entries: Annotated[
        list[int] | None, typer.Argument(metavar="ID", help="These entries.", show_default=False)
    ] = None,
    subscription: Subscription = None,
    channel: Channel = None,
    reason: Reason = None,
    everything: Annotated[bool, typer.Option("--all", help="All there are.")] = False,
    most: Annotated[int | None, typer.Option("--max", min=1, help="At most this many, oldest first.")] = None,
    rate: Annotated[float | None, typer.Option(help="This many become due per second [all].")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    url: Inner = None,
) -> None:
    """Give messages back to the subscriptions that failed them: these entries, or all that match."""
    from gapless_cli.connection import connected
    from gapless_cli.output import until_closed, write_line

    which = _which(subscription, channel, reason)
    if sum((bool(entries), bool(which), everything)) != 1:
        raise usage("say which: ids, or --subscription, --channel and --reason, or --all")
    if entries and (most is not None or rate is not None or dry_run):
        raise usage("--max, --rate and --dry-run go with --subscription, --channel, --reason or --all")
    with until_closed(), connected(url_of(context, url)) as client:
        for entry in entries or ():
            replayed = client.dead_letters.replay(entry)
            write_line(
                {
                    "id": replayed.id,
                    "subscription": replayed.subscription,
                    "message_id": replayed.message_id,
                }
            )
        if not entries:
            counts = client.dead_letters.replay_all(count=most, rate=rate, dry_run=dry_run, **which)
            told = {"replayed": counts.replayed, "skipped": counts.skipped}
            write_line(told | ({"dry_run": True} if dry_run else {}))


@app.command("purge", cls=Command, epilog=PURGE_EXAMPLES)
def purge(
    context: typer.Context,
    older_than: Annotated[str, typer.Option(help="Older than this: 0, 12h, 30d.", show_default=False)],
    subscription: Subscription = None,
    channel: Channel = None,
    reason: Reason = None,
    yes: Yes = False,
    url: Inner = None,
) -> None:
    """Remove all that match and are older, for good."""
    from gapless_cli.connection import connected
    from gapless_cli.output import until_closed, write_line

    age = seconds(older_than, "--older-than")
    which = _which(subscription, channel, reason)
    described = " and ".join(f"{name} {value}" for name, value in which.items())
    of = f" of {described}" if which else ""
    confirm(yes, "purging", f"Remove all dead letters{of} older than {older_than} for good?")
    with until_closed(), connected(url_of(context, url)) as client:
        write_line({"purged": client.dead_letters.purge(age, **which)})


@app.command("delete", cls=Command, epilog=DELETE_EXAMPLES)
def delete(context: typer.Context, entries: Entries, yes: Yes = False, url: Inner = None) -> None:
    """Remove entries and their copies of the messages, for good."""
    from gapless_cli.connection import connected

    named = ", ".join(map(str, entries))
    confirm(yes, f"deleting {named}", f"Delete dead letter {named} and its message for good?")
    with connected(url_of(context, url)) as client:
        for entry in entries:
            client.dead_letters.delete(entry)
            typer.echo(f"deleted dead letter {entry}", err=True)


def _which(subscription: str | None, channel: str | None, reason: str | None) -> dict[str, Any]:
    asked = {"subscription": subscription, "channel": channel, "reason": reason}
    return {name: value for name, value in asked.items() if value is not None}


def _list(url: str, which: dict[str, Any], limit: int | None, *, as_json: bool) -> None:
    from gapless_cli.connection import connected
    from gapless_cli.queues.shapes import dead_letter_json
    from gapless_cli.tables import Column, short, show, when

    columns: list[Column[DeadLetter]] = [
        Column("id", lambda d: str(d.id), True),
        Column("subscription", lambda d: d.subscription),
        Column("channel", lambda d: d.channel),
        Column("message", lambda d: str(d.message.id), True),
        Column("reason", lambda d: d.reason),
        Column("attempts", lambda d: str(d.attempts), True),
        Column("since", lambda d: when(d.created_at)),
        Column("last error", lambda d: short(d.last_error)),
    ]
    page = MAX_PAGE if limit is None else min(limit, MAX_PAGE)
    with connected(url) as client:
        entries = islice(client.dead_letters.list(page_size=page, **which), limit)
        show(entries, dead_letter_json, columns, as_json=as_json)
