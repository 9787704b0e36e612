"""`gapless keys`: makes, lists and revokes API keys, on the database."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from gapless_cli.failures import Failure, say, usage
from gapless_cli.groups import AsJson, Yes, confirm
from gapless_cli.helping import Command, Group
from gapless_cli.options import whole_seconds

from app.cli.on_database import Home, on_database

if TYPE_CHECKING:
    from db.connect import Pool
    from subscriptions.domain.key import Key
    from subscriptions.domain.principal import Grant

EXAMPLES = """
Examples:

  gapless keys                                       a table; JSON lines when piped
  gapless keys create ops --operator                 an admin of all namespaces
  gapless keys create shop --grant 'publish,subscribe:orders.>' --expires 90d
  gapless keys create billing --grant 'consume:billing' --grant 'publish:invoices'
  gapless keys revoke 3k9x2m7q1b5d

From the first key on, every request needs one, for good: only gapless keys open opens the installation
again. These commands work on the database, whether the service runs or not.
"""
CREATE_EXAMPLES = """
Examples:

  gapless keys create ops --operator
  gapless keys create shop --grant 'publish,subscribe:orders.>' --expires 90d
  gapless keys create bot --namespace acme --grant 'publish,subscribe,consume,manage:>'
  export GAPLESS_TOKEN=$(gapless keys create me --operator)

A grant is actions, a colon, and patterns of channels and subscriptions. The actions are publish, subscribe,
consume, manage, moderate and admin. The key goes to stdout, once: nobody can show it again.
"""
LIST_EXAMPLES = """
Examples:

  gapless keys list
  gapless keys list --json | jq -r 'select(.operator) | .name'
"""
REVOKE_EXAMPLES = """
Examples:

  gapless keys revoke 3k9x2m7q1b5d                   the id, as gapless keys shows it

Requests with it are refused from then on, and its streams end, within seconds.
"""
OPEN_EXAMPLES = """
Examples:

  gapless keys open                                  asks first
  gapless keys open --yes

It revokes all keys: everybody who reaches the service may then do everything in its namespace.
"""

app = typer.Typer(cls=Group, rich_markup_mode=None, epilog=EXAMPLES)


@app.callback(invoke_without_command=True, epilog=EXAMPLES)
def keys(context: typer.Context, home: Home = None) -> None:
    """List API keys, or make or revoke one."""
    context.obj = home
    if context.invoked_subcommand is None:
        _list(home, as_json=False)


@app.command("list", cls=Command, epilog=LIST_EXAMPLES)
def list_(context: typer.Context, as_json: AsJson = False, home: Home = None) -> None:
    """List all keys; never what they are."""
    _list(home or context.obj, as_json=as_json)


@app.command("create", cls=Command, epilog=CREATE_EXAMPLES)
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who will use it.", show_default=False)],
    grant: Annotated[
        list[str] | None, typer.Option(metavar="ACTIONS:PATTERNS", help="May be given several times.")
    ] = None,
    namespace: Annotated[str, typer.Option(help="Where it is good.")] = "default",
    operator: Annotated[bool, typer.Option("--operator", help="An admin of all namespaces.")] = False,
    expires: Annotated[str | None, typer.Option(metavar="TIME", help="After so long: 90d.")] = None,
    home: Home = None,
) -> None:
    """Make a key and print it, once. From the first key on, every request needs one."""
    from app.api.keys import new_key
    from db.keys import Keys
    from db.namespaces import Namespaces
    from subscriptions.domain.errors import GaplessError
    from subscriptions.domain.key import written

    if not grant and not operator:
        raise usage("say what it may do: --grant 'publish,subscribe:chat.>', or --operator")
    expires_us = None
    if expires is not None:
        expires_us = time.time_ns() // 1000 + whole_seconds(expires, "--expires") * 1_000_000
    grants = None if not grant else grants_of(grant)
    try:
        key, secret = new_key(namespace, name, grants, operator=operator, expires_us=expires_us)
    except GaplessError as error:
        raise usage(error.detail) from None

    async def act(pool: Pool) -> bool:
        there, stored = Namespaces(pool), Keys(pool, Namespaces(pool))
        if namespace == "default":
            await there.ensure(namespace)
        found = await stored.credentials()
        await stored.put(key)
        return found is not None and found.required

    was_closed = on_database(home or context.obj, act)
    typer.echo(written(key.id, secret))
    say(f"key {key.id} of {name}: nobody can show it again")
    if not was_closed:
        say("every request needs a key from now on; gapless keys open undoes that")


@app.command("revoke", cls=Command, epilog=REVOKE_EXAMPLES)
def revoke(
    context: typer.Context,
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The key's id.", show_default=False)],
    home: Home = None,
) -> None:
    """Revoke a key."""
    from db.keys import Keys
    from db.namespaces import Namespaces

    if not on_database(home or context.obj, lambda pool: Keys(pool, Namespaces(pool)).delete(None, key_id)):
        raise Failure(f"key {key_id} does not exist")
    typer.echo(f"revoked key {key_id}", err=True)


@app.command("open", cls=Command, epilog=OPEN_EXAMPLES)
def open_(context: typer.Context, yes: Yes = False, home: Home = None) -> None:
    """Revoke all keys, and let everybody in again who reaches the service."""
    from db.keys import Keys
    from db.namespaces import Namespaces

    confirm(yes, "opening the installation", "Revoke all keys and let everybody in?")

    async def act(pool: Pool) -> None:
        await Keys(pool, Namespaces(pool)).open_installation()

    on_database(home or context.obj, act, as_owner=True)
    typer.echo("no credentials are needed any more", err=True)


def _list(home: Any, *, as_json: bool) -> None:
    from gapless_cli.tables import Column, show

    from app.api.keys import as_document
    from db.keys import Keys
    from db.namespaces import Namespaces

    columns: list[Column[Key]] = [
        Column("id", lambda key: key.id),
        Column("name", lambda key: key.name),
        Column("namespace", lambda key: key.namespace),
        Column("may", _may),
        Column("expires", lambda key: "never" if key.expires_at_us is None else _day(key.expires_at_us)),
    ]
    found = on_database(home, lambda pool: Keys(pool, Namespaces(pool)).all())
    show(found, as_document, columns, as_json=as_json)


def grants_of(texts: list[str]) -> tuple[Grant, ...]:
    """Grants as a person writes them: actions, a colon, patterns. Raises `Failure`."""
    from app.message.grants import GrantDocument, read_grants
    from subscriptions.domain.errors import GaplessError
    from subscriptions.domain.principal import Action

    documents = []
    for text in texts:
        actions, colon, patterns = text.partition(":")
        try:
            asked = [Action(one.strip()) for one in actions.split(",")]
        except ValueError:
            known = ", ".join(action.value for action in Action)
            raise usage(f"--grant {text}: the actions before the colon are {known}") from None
        named = [one.strip() for one in patterns.split(",")] if colon else []
        documents.append(GrantDocument(actions=asked, channels=named, subscriptions=named))
    try:
        return read_grants(documents)
    except GaplessError as error:
        raise usage(f"--grant: {error.detail}") from None


def _may(key: Key) -> str:
    if key.operator:
        return "everything, everywhere"
    texts = []
    for grant in key.grants or ():
        patterns = dict.fromkeys([*grant.channels, *grant.subscriptions])
        texts.append(f"{','.join(sorted(grant.actions))}:{','.join(patterns)}")
    return "; ".join(texts)


def _day(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M")
