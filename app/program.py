"""How every Python program of Gapless is started, and where it finds its modules.

`python -I app/program.py MODULE arguments…` runs a module of ours as `python -m MODULE arguments…` would. The
folder of the checkout is where people put scripts of their own, and one named like a module of the standard
library or of a package must not be imported in its place. So no folder of ours is on the path: `-I` leaves
Python's own folders there and nothing of the environment, and a finder knows our packages by their names.

A program's environment is left as its caller made it, for what the program starts may be the caller's own.
"""

from __future__ import annotations

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
    "gapless_spark": CHECKOUT / "pipeline",
}


def command(module: str) -> tuple[str, ...]:
    """The start of a command line that runs this module of ours; its arguments follow."""
    return (sys.executable, "-I", str(CHECKOUT / "app" / "program.py"), module)


class OwnPackages:
    """Finds the packages above, each in its folder, and nothing else there."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As the import system asks. What lies inside a package is found as always, by the package's path."""
        folder = FOLDERS.get(name)
        return None if folder is None else PathFinder.find_spec(name, [str(folder)], target)


def main(arguments: list[str]) -> None:
    """Become the module that is named first."""
    sys.meta_path.insert(0, OwnPackages)
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
