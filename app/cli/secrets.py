"""`gapless secrets`: shows and rotates what signs receipts and hints, on the database."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from gapless_cli.failures import say
from gapless_cli.groups import AsJson
from gapless_cli.helping import Command, Group
from gapless_cli.options import seconds

from app.cli.on_database import Home, on_database

if TYPE_CHECKING:
    from db.connect import Pool
    from db.secrets import SecretTimes

EXAMPLES = """
Examples:

  gapless secrets                                    since when each signs; JSON lines when piped
  gapless secrets rotate receipts
  gapless secrets rotate hints --overlap 1m

Receipts of deliveries, and hints between processes through Redis, are signed with secrets in the database.
"""
LIST_EXAMPLES = """
Examples:

  gapless secrets list
  gapless secrets list --json | jq -r 'select(.accepted_until == null) | .signs_from'
"""
ROTATE_EXAMPLES = """
Examples:

  gapless secrets rotate receipts                    what the old one signed is accepted for a day more
  gapless secrets rotate hints --overlap 1m
  gapless secrets rotate receipts --overlap 0s       the old one is known to somebody

The new secret signs after ten seconds, when all processes know it. A delivery whose receipt is not accepted
any more comes again at its deadline. The command needs the owner of the schema (GAPLESS_MIGRATE_URL).
"""

app = typer.Typer(cls=Group, rich_markup_mode=None, epilog=EXAMPLES)


class Purpose(StrEnum):
    """What a secret signs."""

    RECEIPTS = "receipts"
    HINTS = "hints"


@app.callback(invoke_without_command=True, epilog=EXAMPLES)
def secrets(context: typer.Context, home: Home = None) -> None:
    """List the secrets that sign, or rotate one."""
    context.obj = home
    if context.invoked_subcommand is None:
        _list(home, as_json=False)


@app.command("list", cls=Command, epilog=LIST_EXAMPLES)
def list_(context: typer.Context, as_json: AsJson = False, home: Home = None) -> None:
    """List all secrets that are accepted; never what they are."""
    _list(home or context.obj, as_json=as_json)


@app.command("rotate", cls=Command, epilog=ROTATE_EXAMPLES)
def rotate(
    context: typer.Context,
    purpose: Annotated[Purpose, typer.Argument(help="What it signs.", show_default=False)],
    overlap: Annotated[
        str, typer.Option(metavar="TIME", help="So long what the old one signed is accepted.")
    ] = "1d",
    home: Home = None,
) -> None:
    """Make a new secret, and let the old one end."""
    from db.secrets import Secrets

    overlap_s = seconds(overlap, "--overlap")

    async def act(pool: Pool) -> datetime:
        return await Secrets(pool).rotate(purpose.value, overlap_s)

    signs_from = on_database(home or context.obj, act, as_owner=True)
    say(f"a new secret signs {purpose.value} from {_second(signs_from)} on")


def _list(home: Any, *, as_json: bool) -> None:
    from gapless_cli.tables import Column, show

    from db.secrets import Secrets

    columns: list[Column[SecretTimes]] = [
        Column("for", lambda one: one.purpose),
        Column("signs from", lambda one: _second(one.signs_from)),
        Column(
            "accepted until", lambda one: "-" if one.accepted_until is None else _second(one.accepted_until)
        ),
    ]
    show(on_database(home, lambda pool: Secrets(pool).all()), _json, columns, as_json=as_json)


def _json(one: SecretTimes) -> dict[str, Any]:
    until = None if one.accepted_until is None else _second(one.accepted_until)
    return {"for": one.purpose, "signs_from": _second(one.signs_from), "accepted_until": until}


def _second(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
