"""`gapless namespaces`: makes, limits, empties and removes namespaces, on the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from gapless_cli.failures import say, usage
from gapless_cli.groups import AsJson, Yes, confirm
from gapless_cli.helping import Command, Group

from app.cli.on_database import Home, on_database

if TYPE_CHECKING:
    from db.connect import Pool
    from subscriptions.domain.namespace import Namespace

EXAMPLES = """
Examples:

  gapless namespaces                                 a table; JSON lines when piped
  gapless namespaces put acme                        makes it; every process serves it a second later
  gapless namespaces put acme --limit streams=500 --limit publishes_per_second=1000
  gapless namespaces delete acme                     with all that is in it

These commands work on the database, whether the service runs or not. Limits are stored and shown; nothing
enforces them yet.
"""
LIST_EXAMPLES = """
Examples:

  gapless namespaces list
  gapless namespaces list --json | jq -r .name
"""
PUT_EXAMPLES = """
Examples:

  gapless namespaces put acme
  gapless namespaces put acme --limit streams=500    replaces all its limits
"""
DELETE_EXAMPLES = """
Examples:

  gapless namespaces delete acme                     asks first
  gapless namespaces delete acme --yes

It removes its subscriptions, channels with their messages, dead letters, policies and scheduled messages. One
that was interrupted goes on when it is run again.
"""
MAX_ROUNDS = 3
"""How often it empties a namespace that somebody still writes to."""

app = typer.Typer(cls=Group, rich_markup_mode=None, epilog=EXAMPLES)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The namespace.", show_default=False)]


@app.callback(invoke_without_command=True, epilog=EXAMPLES)
def namespaces(context: typer.Context, home: Home = None) -> None:
    """List namespaces, or make, limit or delete one."""
    context.obj = home
    if context.invoked_subcommand is None:
        _list(home, as_json=False)


@app.command("list", cls=Command, epilog=LIST_EXAMPLES)
def list_(context: typer.Context, as_json: AsJson = False, home: Home = None) -> None:
    """List all namespaces."""
    _list(home or context.obj, as_json=as_json)


@app.command("put", cls=Command, epilog=PUT_EXAMPLES)
def put(
    context: typer.Context,
    name: Name,
    limit: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NUMBER", help="A limit; may be given several times.")
    ] = None,
    as_json: AsJson = False,
    home: Home = None,
) -> None:
    """Make a namespace, or set the limits of one."""
    from gapless_cli.tables import show_one

    from db.namespaces import Namespaces
    from subscriptions.domain.names import is_channel

    if not is_channel(name):
        raise usage("a name has letters, digits and _ ~ : @ - in tokens joined by dots")
    limits = None if limit is None else dict(map(_limit, limit))

    async def act(pool: Pool) -> Namespace:
        there = Namespaces(pool)
        await there.put(name, limits)
        return await there.get(name)

    show_one(_json(on_database(home or context.obj, act)), as_json=as_json)


@app.command("delete", cls=Command, epilog=DELETE_EXAMPLES)
def delete(context: typer.Context, name: Name, yes: Yes = False, home: Home = None) -> None:
    """Delete a namespace with everything in it."""
    from db.namespaces import SOME, Namespaces

    confirm(yes, f"deleting {name}", f"Delete namespace {name} with all its messages?")

    async def act(pool: Pool) -> bool:
        there = Namespaces(pool)
        total = rounds = 0
        while rounds < MAX_ROUNDS:
            emptied, gone = await there.remove(name)
            if gone:
                return True
            total += emptied
            # So few may be new ones, of somebody who writes.
            rounds += emptied < SOME
            if emptied and total % 1000 < emptied:
                say(f"removed {total:,} channels, subscriptions and dead letters")
        return False

    if not on_database(home or context.obj, act):
        raise usage(f"somebody still writes to {name}: stop them, then run this again")
    typer.echo(f"deleted namespace {name}", err=True)


def _list(home: Any, *, as_json: bool) -> None:
    from gapless_cli.tables import Column, show

    from db.namespaces import Namespaces

    columns: list[Column[Namespace]] = [
        Column("name", lambda n: n.name),
        Column("served by", lambda n: "every process" if n.shared else "those set to it"),
        Column("limits", lambda n: ", ".join(f"{k}={v:g}" for k, v in n.limits.items()) or "-"),
    ]
    show(on_database(home, lambda pool: Namespaces(pool).all()), _json, columns, as_json=as_json)


def _json(namespace: Namespace) -> dict[str, Any]:
    return {"name": namespace.name, "limits": dict(namespace.limits), "shared": namespace.shared}


def _limit(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not name or not 0 <= value < 2**53:
        raise usage(f"--limit {text}: must be a name, = and a number, such as streams=500")
    return name, int(value) if value.is_integer() else value
