"""Starts every Python program of Gapless and finds its modules.

`python -I app/launch.py MODULE arguments…` runs a module of Gapless as `python -m MODULE arguments…` would.
People put their own scripts into the folder of the checkout, and a script named like a module of the standard
library or of a package must not be imported in its place. So no folder of Gapless is on the path: `-I` keeps
only Python's own folders and ignores the environment, and a finder knows the packages of Gapless by name.

A program's environment is not changed, because programs that it starts may be the caller's own.
"""

from __future__ import annotations

import gc
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

CHECKOUT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "app": CHECKOUT,
    "cache": CHECKOUT,
    "db": CHECKOUT,
    "subscriptions": CHECKOUT,
    "load": CHECKOUT,
    "gapless": CHECKOUT / "client",
    "gapless_cli": CHECKOUT / "client",
    "gapless_spark": CHECKOUT / "pipeline",
}


def command(module: str) -> tuple[str, ...]:
    """The start of a command line that runs this module of ours; its arguments follow."""
    return (sys.executable, "-I", str(CHECKOUT / "app" / "launch.py"), module)


class OwnPackages:
    """An import finder for the packages above, each in its folder, and for nothing else there."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The import system's hook. Modules inside a package are found as usual, by the package's path."""
        folder = FOLDERS.get(name)
        return None if folder is None else PathFinder.find_spec(name, [str(folder)], target)


def main(arguments: list[str]) -> None:
    """Runs the module that is named first."""
    # Nearly all objects that modules make stay. Collecting them while they load takes a tenth of that time.
    gc.set_threshold(200_000, 20, 20)
    sys.meta_path.insert(0, OwnPackages)
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
