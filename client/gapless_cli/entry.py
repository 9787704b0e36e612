"""The entry point of `gapless` if only the client is installed."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or name the package that is missing."""
    try:
        from gapless_cli.__main__ import main as run
    except ModuleNotFoundError as error:
        print(f"gapless: {error.name} is missing: pip install 'gapless[cli]'", file=sys.stderr)
        raise SystemExit(1) from None
    run()
