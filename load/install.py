"""Installs missing programs. A failure raises RuntimeError."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from load.drill import RESULTS, say
from load.verdict import NoVerdictError

TRIES = 3
"""Of a download."""


def debian(*packages: str) -> None:
    """Install Debian packages."""
    say(f"installing {', '.join(packages)} (Debian)")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    _run(["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages], environment=quiet)


def chromium() -> None:
    """Install Chromium."""
    if shutil.which("chromium") is None:
        debian("chromium")


def npm(name: str, packages: Sequence[str]) -> Path:
    """Install packages into a folder of this name under `load/results`. Returns the folder."""
    folder = RESULTS / name / "node"
    if not all((folder / "node_modules" / package).exists() for package in packages):
        say(f"installing {', '.join(packages)} (npm)")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"private": true}\n')
        _run(["npm", "install", "--no-audit", "--no-fund", "--silent", *packages], folder)
    return folder


def python_of(name: str) -> Path:
    """The interpreter of the environment of this name."""
    return RESULTS / name / "python" / "bin" / "python"


def pypi(name: str, packages: Sequence[str], proof: str) -> str:
    """Install packages into their own environment. Returns the output of the program `proof`, which must
    import them."""
    python = python_of(name)
    if (said := _said(python, proof)) is None:
        say(f"installing {', '.join(packages)} (PyPI)")
        _run([sys.executable, "-m", "venv", str(python.parent.parent)])
        _run([str(python), "-m", "pip", "install", "-q", *packages])
        said = _said(python, proof)
    if said is None:
        raise RuntimeError(f"{', '.join(packages)} cannot be used")
    return said


def source(name: str, package: str, version: str) -> Path:
    """The source distribution of a package, in the folder of this name. Raises NoVerdictError if three tries
    do not bring it."""
    folder, python = RESULTS / name / "source", python_of(name)
    if not (found := list(folder.glob(f"*-{version}.tar.gz"))):
        say(f"downloading the source of {package} {version} (PyPI)")
        if not python.exists():
            _run([sys.executable, "-m", "venv", str(python.parent.parent)])
        words = [str(python), "-m", "pip", "download", "-q", "--no-deps", "--no-binary", package]
        _try([*words, "-d", str(folder), f"{package}=={version}"])
        found = list(folder.glob(f"*-{version}.tar.gz"))
    if len(found) != 1:
        raise RuntimeError(f"{folder} has {len(found)} sources of {package} {version}")
    return found[0]


def _try(words: Sequence[str]) -> None:
    """Run a download, up to three times."""
    for tries in range(1, TRIES + 1):
        try:
            _run(words)
        except RuntimeError as error:
            if tries == TRIES:
                raise NoVerdictError(f"no network: {error}") from error
        else:
            return


def _said(python: Path, proof: str) -> str | None:
    if not python.exists():
        return None
    answer = subprocess.run([str(python), "-c", proof], capture_output=True, text=True)
    return answer.stdout.strip() if answer.returncode == 0 else None


def _run(words: Sequence[str], folder: Path | None = None, environment: dict[str, str] | None = None) -> None:
    answer = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    if answer.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} ended with {answer.returncode}:\n{answer.stderr}")
