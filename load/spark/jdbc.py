"""Postgres' driver for Java, from Debian's package. It is unpacked into a folder that git ignores."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from load.drill import RESULTS
from load.postgres import Postgres

PACKAGE = "libpostgresql-jdbc-java"
INSTALLED = Path("/usr/share/java/postgresql.jar")
HOME = RESULTS / "jdbc"


def url(server: Postgres) -> str:
    """The URL of its log, for Java."""
    return f"jdbc:postgresql://127.0.0.1:{server.port}/{server.log}?user=postgres"


def jar() -> Path:
    """The path of the driver. It is fetched if it is not installed. Raises RuntimeError if that fails."""
    if INSTALLED.exists():
        return INSTALLED
    kept = HOME / "usr/share/java/postgresql.jar"
    if not kept.exists():
        with tempfile.TemporaryDirectory() as folder:
            get = f"apt-get download {PACKAGE}"
            command = ["sh", "-c", f"{get} || (apt-get update && {get})"]
            answer = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            packages = list(Path(folder).glob("*.deb"))
            if not packages:
                raise RuntimeError(f"apt-get cannot fetch {PACKAGE}:\n{answer.stderr}")
            HOME.mkdir(parents=True, exist_ok=True)
            subprocess.run(["dpkg-deb", "-x", str(packages[0]), str(HOME)], check=True)
    return kept.resolve()
