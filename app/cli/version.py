"""`gapless version` and `gapless --version`."""

from __future__ import annotations

import platform
from typing import Annotated

import typer

EXAMPLES = """
Examples:

  gapless version
"""


def version() -> None:
    """Print the versions of the service, of its client and of Python."""
    from gapless import __version__ as client

    from app import VERSION

    print(f"gapless {VERSION} (client {client}, Python {platform.python_version()})")


def _asked(yes: bool) -> None:
    if yes:
        version()
        raise typer.Exit


def root(
    shown: Annotated[
        bool, typer.Option("--version", callback=_asked, is_eager=True, help="Print the versions and exit.")
    ] = False,
) -> None:
    """Ordered, durable delivery for chat and events."""
