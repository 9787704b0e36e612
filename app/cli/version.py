"""`gapless version`."""

from __future__ import annotations

import platform

EXAMPLES = """
Examples:

  gapless version
"""


def version() -> None:
    """Print the versions of the service, of its client and of Python."""
    from gapless import __version__ as client

    from app.openapi import VERSION

    print(f"gapless {VERSION} (client {client}, Python {platform.python_version()})")
