"""`gapless doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """
Examples:

  gapless doctor
  gapless doctor --json | jq '.checks[] | select(.word != "ok")'
  GAPLESS_DATABASE_URL=postgresql://… gapless doctor     before the first serve on a database of yours

It changes nothing and needs no running server. Exit code 0: nothing fails; 1: something does.
"""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    home: Annotated[Path | None, typer.Option(help="Data of the embedded servers.")] = None,
    port: Annotated[int | None, typer.Option(help="Port that serve would take.")] = None,
) -> None:
    """Say what this installation consists of, what is wrong with it, and what to do about it."""
    from app.cli.doctor import show
    from app.cli.doctor.examine import examine
    from app.cli.doctor.settings import in_effect
    from app.cli.settings import settings_from

    flags = {name: value for name, value in (("home", home), ("port", port)) if value is not None}
    settings = settings_from(**flags)
    checks, values = examine(settings), in_effect(settings, frozenset(flags))
    if as_json:
        typer.echo(show.as_json(checks, values))
    else:
        show.print_all(checks, values)
    raise typer.Exit(0 if show.is_sound(checks) else 1)
