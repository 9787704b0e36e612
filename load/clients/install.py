"""Installs the clients by name into a folder that git ignores; a second run finds them there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent / "results" / "clients"
NODE = HOME / "node"
PYTHON = HOME / "venv" / "bin" / "python"

NPM = ("eventsource", "eventsource-client")
PYPI = ("playwright", "httpx-sse", "httpx", "aiohttp-sse-client", "aiohttp")


def install(say: Callable[[str], None]) -> None:
    """Make everything ready; raises CalledProcessError when something cannot be installed."""
    HOME.mkdir(parents=True, exist_ok=True)
    install_chromium(say)
    if not all((NODE / "node_modules" / name).exists() for name in NPM):
        say(f"installing {', '.join(NPM)} (npm)")
        NODE.mkdir(exist_ok=True)
        (NODE / "package.json").write_text('{"private": true}\n')
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent", *NPM], check=True, cwd=NODE)
    if not _has_pypi():
        say(f"installing {', '.join(PYPI)} (PyPI)")
        subprocess.run([sys.executable, "-m", "venv", str(HOME / "venv")], check=True)
        subprocess.run([str(PYTHON), "-m", "pip", "install", "-q", *PYPI], check=True)


def install_chromium(say: Callable[[str], None]) -> None:
    """Make Chromium ready; raises CalledProcessError when it cannot be installed."""
    if shutil.which("chromium") is None:
        say("installing chromium (Debian package)")
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "install", "-y", "-q", "--no-install-recommends", "chromium"],
                       check=True, env=quiet)  # fmt: skip


def _has_pypi() -> bool:
    if not PYTHON.exists():
        return False
    ask = [str(PYTHON), "-c", "import playwright, httpx_sse, aiohttp_sse_client"]
    return subprocess.run(ask, capture_output=True).returncode == 0
