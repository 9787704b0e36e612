"""`gapless policies`: manages settings for all channels or subscriptions whose names match."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gapless_cli.failures import usage
from gapless_cli.groups import AsJson, IfMatch, Inner, Yes, confirm, tag_of, url_of
from gapless_cli.helping import Command, Group
from gapless_cli.options import DEFAULT_URL, Url

if TYPE_CHECKING:
    from gapless import Policy

EXAMPLES = """
Examples:

  gapless policies                                   a table; JSON lines when piped
  gapless policies put slow --pattern 'jobs.>' --applies-to subscriptions '{"ack_wait": 600}'
  gapless policies put month --pattern '>' --applies-to channels '{"retention": {"max_age": 2592000}}'
  gapless policies show slow
  gapless policies delete slow

The own setting of a channel or subscription overrides a policy. A higher priority overrides a lower one.
"""
LIST_EXAMPLES = """
Examples:

  gapless policies list
  gapless policies list --json | jq 'select(.applies_to == "channels")'
"""
SHOW_EXAMPLES = """
Examples:

  gapless policies show slow
"""
PUT_EXAMPLES = """
Examples:

  gapless policies put slow --pattern 'jobs.>' --applies-to subscriptions '{"ack_wait": 600}'
  gapless policies put month --pattern '>' --applies-to channels --priority -10 < month.json

It takes effect at once for all that match and have no own setting. Times are in seconds.
"""
DELETE_EXAMPLES = """
Examples:

  gapless policies delete slow                       asks first
  gapless policies delete slow --yes
"""

app = typer.Typer(cls=Group, rich_markup_mode=None, epilog=EXAMPLES)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The policy.", show_default=False)]


@app.callback(invoke_without_command=True, epilog=EXAMPLES)
def policies(context: typer.Context, url: Url = DEFAULT_URL) -> None:
    """List policies, or show, put or delete one."""
    context.obj = url
    if context.invoked_subcommand is None:
        _list(url, as_json=False)


@app.command("list", cls=Command, epilog=LIST_EXAMPLES)
def list_(context: typer.Context, as_json: AsJson = False, url: Inner = None) -> None:
    """List all policies."""
    _list(url_of(context, url), as_json=as_json)


@app.command("show", cls=Command, epilog=SHOW_EXAMPLES)
def show(context: typer.Context, name: Name, as_json: AsJson = False, url: Inner = None) -> None:
    """Show a policy."""
    from gapless_cli.connection import connected

    with connected(url_of(context, url)) as client:
        _show(client.policies.get(name), as_json=as_json)


@app.command("put", cls=Command, epilog=PUT_EXAMPLES)
def put(
    context: typer.Context,
    name: Name,
    pattern: Annotated[str, typer.Option(help="Names it applies to, such as jobs.>", show_default=False)],
    applies_to: Annotated[
        Literal["channels", "subscriptions"], typer.Option(help="What it is about.", show_default=False)
    ],
    definition: Annotated[
        str | None,
        typer.Argument(
            metavar="DEFINITION", help="Settings as JSON; - or absent: stdin.", show_default=False
        ),
    ] = None,
    priority: Annotated[int, typer.Option(help="The higher one wins.")] = 0,
    if_match: IfMatch = None,
    as_json: AsJson = False,
    url: Inner = None,
) -> None:
    """Create or replace a policy."""
    from gapless_cli.connection import connected

    settings = _settings(definition)
    with connected(url_of(context, url)) as client:
        tag = tag_of(if_match)
        made = client.policies.put(name, pattern, applies_to, settings, priority=priority, if_match=tag)
        _show(made, as_json=as_json)


@app.command("delete", cls=Command, epilog=DELETE_EXAMPLES)
def delete(
    context: typer.Context, name: Name, if_match: IfMatch = None, yes: Yes = False, url: Inner = None
) -> None:
    """Delete a policy. This takes effect at once."""
    from gapless_cli.connection import connected

    confirm(yes, f"deleting {name}", f"Delete policy {name}?")
    with connected(url_of(context, url)) as client:
        client.policies.delete(name, if_match=tag_of(if_match))
        typer.echo(f"deleted policy {name}", err=True)


def _settings(definition: str | None) -> dict[str, Any]:
    from gapless_cli.new_message import parse

    where, text = ("stdin", sys.stdin.read()) if definition in (None, "-") else ("DEFINITION", definition)
    settings = parse(text or "", where)
    if not isinstance(settings, dict):
        raise usage(f'{where} must be an object of settings, such as {{"ack_wait": 600}}')
    return settings


def _show(policy: Policy, *, as_json: bool) -> None:
    from gapless_cli.queues.shapes import policy_json
    from gapless_cli.tables import show_one

    show_one(policy_json(policy), as_json=as_json)


def _list(url: str, *, as_json: bool) -> None:
    import msgspec

    from gapless_cli.connection import connected
    from gapless_cli.queues.shapes import policy_json
    from gapless_cli.tables import Column, show

    columns: list[Column[Policy]] = [
        Column("policy", lambda p: p.name),
        Column("applies to", lambda p: p.applies_to),
        Column("pattern", lambda p: p.pattern),
        Column("priority", lambda p: str(p.priority), True),
        Column("definition", lambda p: msgspec.json.encode(p.definition).decode()),
    ]
    with connected(url) as client:
        show(client.policies.list(), policy_json, columns, as_json=as_json)
