"""Installs the rivals by name into a folder that git ignores; a second run finds them there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HOME = Path(__file__).resolve().parents[2] / "results" / "queue"
PYTHON = HOME / "python" / "bin" / "python"
PACKAGES = ("procrastinate", "psycopg[binary]", "pgqueuer[asyncpg]", "uvloop")
FACTS = (
    "from importlib.metadata import version; import procrastinate, psycopg_binary, asyncpg, uvloop;"
    "print('procrastinate', version('procrastinate'), 'and pgqueuer', version('pgqueuer'))"
)


def install(say: Callable[[str], None]) -> str:
    """Make them ready; their versions. Raises RuntimeError when one cannot be installed."""
    facts = _facts()
    if facts is None:
        say(f"installing {', '.join(PACKAGES)} (PyPI)")
        subprocess.run([sys.executable, "-m", "venv", str(PYTHON.parent.parent)], check=True)
        answer = subprocess.run([str(PYTHON), "-m", "pip", "install", "-q", *PACKAGES], capture_output=True)
        facts = _facts()
        if facts is None:
            raise RuntimeError(
                f"the rivals could not be installed:\n{answer.stderr.decode(errors='replace')}"
            )
    return facts


def _facts() -> str | None:
    """Their versions, or nothing when one is missing."""
    if not PYTHON.exists():
        return None
    answer = subprocess.run([str(PYTHON), "-c", FACTS], capture_output=True)
    return answer.stdout.decode().strip() if answer.returncode == 0 else None
