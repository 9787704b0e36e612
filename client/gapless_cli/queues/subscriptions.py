"""`gapless subscriptions`: manages durable subscriptions and shows their state."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gapless_cli.failures import usage
from gapless_cli.groups import AsJson, IfMatch, Inner, Yes, confirm, tag_of, url_of
from gapless_cli.helping import Command, Group
from gapless_cli.limits import MAX_PAGE
from gapless_cli.options import DEFAULT_URL, Changes, Keys, Types, Url
from gapless_cli.queues import settings
from gapless_cli.queues.settings import place
from gapless_cli.queues.shapes import SETTINGS

if TYPE_CHECKING:
    from gapless import Outstanding, Subscription

EXAMPLES = """
Examples:

  gapless subscriptions                              a table; JSON lines when piped
  gapless subscriptions create billing 'orders.>' --ack-wait 2m
  gapless subscriptions show billing
  gapless subscriptions seek billing earliest
  gapless subscriptions delete billing --yes

gapless consume hands out a subscription's messages. gapless subscriptions look only shows them.
"""
LIST_EXAMPLES = """
Examples:

  gapless subscriptions list
  gapless subscriptions list --pattern 'billing.*' --json
"""
SHOW_EXAMPLES = """
Examples:

  gapless subscriptions show billing
  gapless subscriptions show billing | jq .stats.lag
"""
CREATE_EXAMPLES = """
Examples:

  gapless subscriptions create billing orders.eu 'orders.us.*'
  gapless subscriptions create billing 'orders.>' --start earliest --ack-wait 2m --max-deliver 10
  gapless subscriptions create mails users --type signed-up --backoff 10s,1m,1h --dead-letter dead.mails
  GAPLESS_PUSH_SECRET=whsec_… gapless subscriptions create crm users --push-url https://crm.example/hook

Creating the same again is not an error; another definition under the same name is one. A setting that is not
given comes from a policy, else from the defaults.
"""
UPDATE_EXAMPLES = """
Examples:

  gapless subscriptions update billing --ack-wait 5m
  gapless subscriptions update billing --channel 'orders.>' --channel refunds
  gapless subscriptions update billing --unset backoff --unset filter     policies and defaults apply again
  gapless subscriptions update billing --ack-wait 5m --if-match "$etag"   only if unchanged since show

Settings that are not given stay as they are. To change its place in the log, use gapless subscriptions seek.
"""
DELETE_EXAMPLES = """
Examples:

  gapless subscriptions delete billing               asks first
  gapless subscriptions delete billing --yes
"""
PURGE_EXAMPLES = """
Examples:

  gapless subscriptions purge billing                asks first
  gapless subscriptions purge billing --yes

Channels keep the messages: gapless subscriptions seek can go back to them.
"""
SEEK_EXAMPLES = """
Examples:

  gapless subscriptions seek billing earliest        all messages once more
  gapless subscriptions seek billing latest          only new messages
  gapless subscriptions seek billing 1042            messages after that id
  gapless subscriptions seek billing 2h              messages of the last two hours
  gapless subscriptions seek billing 2h --dry-run    only shows the place before and after

Messages in flight or waiting are forgotten. Dead letters stay.
"""
LOOK_EXAMPLES = """
Examples:

  gapless subscriptions look billing                 unsettled messages, by id
  gapless subscriptions look billing --state leased  leased ones, with member and deadline
  gapless subscriptions look billing --state waiting --limit 10
  gapless subscriptions look billing --json | jq .message.data

It takes no lease and counts no attempt.
"""
PAUSE_EXAMPLES = """
Examples:

  gapless subscriptions pause billing                hands out nothing until it is resumed
"""
RESUME_EXAMPLES = """
Examples:

  gapless subscriptions resume billing
"""
UNSET = (*SETTINGS, "retain", "filter", "dead_letter", "push")

app = typer.Typer(cls=Group, rich_markup_mode=None, epilog=EXAMPLES)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The subscription.", show_default=False)]
Pattern = Annotated[str | None, typer.Option(help="Only names that match, such as billing.>")]


@app.callback(invoke_without_command=True, epilog=EXAMPLES)
def subscriptions(context: typer.Context, url: Url = DEFAULT_URL) -> None:
    """List durable subscriptions, or manage one."""
    context.obj = url
    if context.invoked_subcommand is None:
        _list(url, None, as_json=False)


@app.command("list", cls=Command, epilog=LIST_EXAMPLES)
def list_(
    context: typer.Context, pattern: Pattern = None, as_json: AsJson = False, url: Inner = None
) -> None:
    """List subscriptions with their settings in force."""
    _list(url_of(context, url), pattern, as_json=as_json)


@app.command("show", cls=Command, epilog=SHOW_EXAMPLES)
def show(context: typer.Context, name: Name, as_json: AsJson = False, url: Inner = None) -> None:
    """Show a subscription's settings, the origin of each, and its stats."""
    from gapless_cli.connection import connected

    with connected(url_of(context, url)) as client:
        _show(client.subscriptions.get(name), as_json=as_json)


@app.command("create", cls=Command, epilog=CREATE_EXAMPLES)
def create(
    context: typer.Context,
    name: Name,
    channels: Annotated[
        list[str],
        typer.Argument(metavar="CHANNEL", help="Channels or patterns.", show_default=False),
    ],
    start: Annotated[
        str | None, typer.Option(help="earliest, latest, an id, RFC 3339, or an age: 10m, 2h, 1d [latest].")
    ] = None,
    ack_wait: settings.AckWait = None,
    max_deliver: settings.MaxDeliver = None,
    backoff: settings.Backoff = None,
    max_in_flight: settings.MaxInFlight = None,
    ordering: settings.Ordering = None,
    message_ttl: settings.MessageTtl = None,
    max_backlog: settings.MaxBacklog = None,
    retain: settings.Retain = None,
    expires: settings.Expires = None,
    types: Types = None,
    keys: Keys = None,
    changes: Changes = None,
    dead_letter: settings.DeadLetter = None,
    dead_letter_keep: settings.DeadLetterKeep = None,
    push_url: settings.PushUrl = None,
    push_secret_file: settings.PushSecretFile = None,
    if_match: IfMatch = None,
    as_json: AsJson = False,
    url: Inner = None,
) -> None:
    """Create a durable subscription to channels or patterns. An equal one may exist already."""
    from gapless_cli.connection import connected

    said = settings.options(
        ack_wait=ack_wait,
        max_deliver=max_deliver,
        backoff=backoff,
        max_in_flight=max_in_flight,
        ordering=ordering,
        message_ttl=message_ttl,
        max_backlog=max_backlog,
        retain=retain,
        expires=expires,
        types=types,
        keys=keys,
        changes=changes,
        dead_letter=dead_letter,
        dead_letter_keep=dead_letter_keep,
        push_url=push_url,
        push_secret_file=push_secret_file,
    )
    begin = None if start is None else place(start)
    with connected(url_of(context, url)) as client:
        made = client.subscriptions.create(name, channels, start=begin, if_match=tag_of(if_match), **said)
        _show(made, as_json=as_json)


@app.command("update", cls=Command, epilog=UPDATE_EXAMPLES)
def update(
    context: typer.Context,
    name: Name,
    channels: Annotated[
        list[str] | None, typer.Option("--channel", help="Read this instead; may be repeated.")
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="SETTING", help="Remove its own setting; may be repeated.")
    ] = None,
    ack_wait: settings.AckWait = None,
    max_deliver: settings.MaxDeliver = None,
    backoff: settings.Backoff = None,
    max_in_flight: settings.MaxInFlight = None,
    ordering: settings.Ordering = None,
    message_ttl: settings.MessageTtl = None,
    max_backlog: settings.MaxBacklog = None,
    retain: settings.Retain = None,
    expires: settings.Expires = None,
    types: Types = None,
    keys: Keys = None,
    changes: Changes = None,
    dead_letter: settings.DeadLetter = None,
    dead_letter_keep: settings.DeadLetterKeep = None,
    push_url: settings.PushUrl = None,
    push_secret_file: settings.PushSecretFile = None,
    if_match: IfMatch = None,
    as_json: AsJson = False,
    url: Inner = None,
) -> None:
    """Change a subscription's own settings. Settings that are not given stay as they are."""
    from gapless_cli.connection import connected

    said = settings.options(
        ack_wait=ack_wait,
        max_deliver=max_deliver,
        backoff=backoff,
        max_in_flight=max_in_flight,
        ordering=ordering,
        message_ttl=message_ttl,
        max_backlog=max_backlog,
        retain=retain,
        expires=expires,
        types=types,
        keys=keys,
        changes=changes,
        dead_letter=dead_letter,
        dead_letter_keep=dead_letter_keep,
        push_url=push_url,
        push_secret_file=push_secret_file,
    )
    asked = _unset(unset or [], said)
    if not asked and channels is None:
        raise usage("say what to change: --channel, --unset or a setting")
    with connected(url_of(context, url)) as client:
        tag = tag_of(if_match)
        _show(client.subscriptions.update(name, channels=channels, if_match=tag, **asked), as_json=as_json)


@app.command("delete", cls=Command, epilog=DELETE_EXAMPLES)
def delete(
    context: typer.Context,
    name: Name,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only if it holds no message.")] = False,
    if_unused: Annotated[bool, typer.Option("--if-unused", help="Only if it has no member.")] = False,
    if_match: IfMatch = None,
    yes: Yes = False,
    url: Inner = None,
) -> None:
    """Delete a subscription and its place in the log, for good. Its dead letters stay."""
    from gapless_cli.connection import connected

    with connected(url_of(context, url)) as client:
        stats = client.subscriptions.get(name).stats
        left = 0 if stats is None else stats.lag + stats.in_flight
        confirm(yes, f"deleting {name}", f"Delete {name}, which has {left:,} messages to settle, for good?")
        client.subscriptions.delete(name, if_empty=if_empty, if_unused=if_unused, if_match=tag_of(if_match))
        typer.echo(f"deleted {name}", err=True)


@app.command("purge", cls=Command, epilog=PURGE_EXAMPLES)
def purge(
    context: typer.Context, name: Name, if_match: IfMatch = None, yes: Yes = False, url: Inner = None
) -> None:
    """Remove all messages not in flight from a subscription, for good. The log keeps them."""
    from gapless_cli.connection import connected
    from gapless_cli.output import write_line

    with connected(url_of(context, url)) as client:
        left = client.subscriptions.length(name).lag
        confirm(yes, f"purging {name}", f"Remove {left:,} messages from {name}, for good?")
        write_line({"purged": client.subscriptions.purge(name, if_match=tag_of(if_match))})


@app.command("seek", cls=Command, epilog=SEEK_EXAMPLES)
def seek(
    context: typer.Context,
    name: Name,
    to: Annotated[
        str,
        typer.Argument(
            metavar="TO", help="earliest, latest, an id, RFC 3339, or an age.", show_default=False
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what it would do.")] = False,
    if_match: IfMatch = None,
    as_json: AsJson = False,
    url: Inner = None,
) -> None:
    """Move a subscription to another place in the log."""
    from gapless_cli.connection import connected

    with connected(url_of(context, url)) as client:
        moved = client.subscriptions.seek(name, place(to), dry_run=dry_run, if_match=tag_of(if_match))
        _show(moved, as_json=as_json)


@app.command("look", cls=Command, epilog=LOOK_EXAMPLES)
def look(
    context: typer.Context,
    name: Name,
    state: Annotated[
        Literal["ready", "waiting", "delayed", "leased"] | None, typer.Option(help="Only in this state.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many [all].")] = None,
    as_json: AsJson = False,
    url: Inner = None,
) -> None:
    """Show the messages that a subscription has not settled, without leasing any."""
    from gapless_cli.connection import connected
    from gapless_cli.queues.shapes import outstanding_json
    from gapless_cli.tables import Column, short
    from gapless_cli.tables import show as show_list

    columns: list[Column[Outstanding]] = [
        Column("message", lambda o: str(o.message.id), True),
        Column("channel", lambda o: o.message.channel),
        Column("key", lambda o: o.message.key or "-"),
        Column("state", lambda o: o.state),
        Column("attempt", lambda o: str(o.attempt), True),
        Column("", _when),
        Column("last error", lambda o: short(o.last_error)),
    ]
    with connected(url_of(context, url)) as client:
        found = islice(
            client.subscriptions.look(name, state, page_size=min(limit or MAX_PAGE, MAX_PAGE)), limit
        )
        show_list(found, outstanding_json, columns, as_json=as_json)


def _when(seen: Outstanding) -> str:
    from gapless_cli.tables import when

    if seen.waits_for is not None:
        return f"waits for {seen.waits_for}"
    if seen.deadline is not None:
        return f"until {when(seen.deadline)}, {seen.member}"
    return "-" if seen.due_at is None else f"from {when(seen.due_at)}"


@app.command("pause", cls=Command, epilog=PAUSE_EXAMPLES)
def pause(
    context: typer.Context,
    name: Name,
    if_match: IfMatch = None,
    as_json: AsJson = False,
    url: Inner = None,
) -> None:
    """Stop handing out messages until it is resumed. Leases and lifetimes go on."""
    from gapless_cli.connection import connected

    with connected(url_of(context, url)) as client:
        _show(client.subscriptions.pause(name, if_match=tag_of(if_match)), as_json=as_json)


@app.command("resume", cls=Command, epilog=RESUME_EXAMPLES)
def resume(
    context: typer.Context,
    name: Name,
    if_match: IfMatch = None,
    as_json: AsJson = False,
    url: Inner = None,
) -> None:
    """Hand out messages again."""
    from gapless_cli.connection import connected

    with connected(url_of(context, url)) as client:
        _show(client.subscriptions.resume(name, if_match=tag_of(if_match)), as_json=as_json)


def _unset(names: list[str], said: dict[str, Any]) -> dict[str, Any]:
    """The changes, with None for each setting to remove."""
    for name in names:
        word = name.replace("-", "_")
        if word not in UNSET:
            raise usage(f"--unset {name!r} is no setting: {', '.join(UNSET)}")
        if word in said:
            raise usage(f"{name} cannot be set and unset at once")
        said = {**said, word: None}
    return said


def _show(subscription: Subscription, *, as_json: bool) -> None:
    from gapless_cli.queues.shapes import subscription_json
    from gapless_cli.tables import show_one

    show_one(subscription_json(subscription), as_json=as_json)


def _list(url: str, pattern: str | None, *, as_json: bool) -> None:
    from gapless_cli.connection import connected
    from gapless_cli.queues.shapes import subscription_json
    from gapless_cli.tables import Column, number, show, span

    columns: list[Column[Subscription]] = [
        Column("subscription", lambda s: s.name),
        Column("channels", lambda s: ", ".join(s.channels)),
        Column("ordering", lambda s: s.ordering),
        Column("ack wait", lambda s: span(s.ack_wait), True),
        Column("max deliver", lambda s: number(s.max_deliver), True),
        Column("in flight up to", lambda s: number(s.max_in_flight), True),
        Column("push", lambda s: s.push.url if s.push else "-"),
        Column("state", lambda s: "paused" if s.paused else "active"),
    ]
    with connected(url) as client:
        show(
            client.subscriptions.list(pattern, page_size=MAX_PAGE),
            subscription_json,
            columns,
            as_json=as_json,
        )
