"""Python, the environment, and the programs of the embedded servers."""

from __future__ import annotations

import platform
import re
import sys
from importlib import metadata
from pathlib import Path

from app.cli.doctor.check import Check, fail, ok, warn
from app.embedded import EmbeddedError
from app.embedded.binaries import find_postgres, find_redis
from app.launch import CHECKOUT

OLDEST_PYTHON = (3, 11)
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)\s*(?:;\s*(.*?))?\s*\\?$", re.MULTILINE)


def checks(embedded_postgres: bool, embedded_redis: bool) -> list[Check]:
    """Everything about this machine. Programs of servers that are not used need not be there."""
    found = [_python(), _environment(CHECKOUT / "requirements" / "runtime.txt")]
    if embedded_postgres:
        found.append(_postgres())
    if embedded_redis:
        found.append(_redis())
    return found


def _python() -> Check:
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"
    if sys.version_info < OLDEST_PYTHON:
        return fail("python", detail, "Python 3.11 or newer is needed")
    return ok("python", detail)


def _environment(lock: Path) -> Check:
    """Whether the packages are those of the lock."""
    try:
        pins = _PIN.findall(lock.read_text())
    except OSError:
        return warn("environment", f"{sys.prefix}; no lock to compare it with", f"{lock} is missing")
    wrong = [
        f"{name} {have or 'missing'} (locked: {version})"
        for name, version, condition in pins
        if not condition and (have := _installed(name)) != version
    ]
    if wrong:
        advice = "run ./gapless once: it makes the environment anew from its lock"
        return warn("environment", f"{sys.prefix}: {', '.join(wrong)}", advice)
    return ok("environment", f"{sys.prefix}, {len(pins)} packages as locked")


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _postgres() -> Check:
    try:
        found = find_postgres()
    except EmbeddedError as error:
        return fail("embedded postgres", str(error), "or give GAPLESS_DATABASE_URL")
    return ok("embedded postgres", f"Postgres {found.major} in {found.folder}")


def _redis() -> Check:
    try:
        return ok("embedded redis", str(find_redis()))
    except EmbeddedError as error:
        return fail("embedded redis", str(error), "or give GAPLESS_REDIS_URL")
