"""Names and durable steps in the folder of an export.

Files that are not part of the export yet are in `_gapless`, and their names do not end in `.parquet`. Spark
skips folders that begin with an underscore; other readers take every file that matches a pattern such as
`**/*.parquet`.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

Key = tuple[str, str | None]
"""A partition: a day (UTC, YYYY-MM-DD), and the channel in an export by channel, else None."""

HIDDEN = "_gapless"
_BEGINNING = "c."
"""With this prefix a name is not hidden, not reserved by a system, and not a number."""
_AS_IT_IS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789._-@")
_LONGEST = 120
_DIGEST = 40


def channel_folder(channel: str) -> str:
    """The name of a channel's folder, at most `_LONGEST` characters. Different channels have different names,
    also on file systems that ignore case.

    The name is for people and for patterns. It has no `=`, so that readers take no value from it: they guess
    types, and `007` and `7` would become one channel. The files have the column `channel`. Lower-case
    letters, digits and `._-@` stay; each byte (UTF-8) of another character becomes `~` and two hexadecimal
    digits. A name that would be too long is cut and ends with `~~` and a digest.
    """
    encoded = "".join(
        c if c in _AS_IT_IS else "".join(f"~{byte:02x}" for byte in c.encode()) for c in channel
    )
    name = _BEGINNING + encoded
    if len(name) > _LONGEST or name.endswith("."):
        digest = hashlib.sha256(channel.encode()).hexdigest()[:_DIGEST]
        name = f"{name[: _LONGEST - _DIGEST - 2]}~~{digest}"
    return name


def partition_folder(date: str, channel: str | None) -> str:
    """The folder of a partition, relative to the root. `date` is a day (UTC) as YYYY-MM-DD."""
    return f"date={date}" if channel is None else f"date={date}/{channel_folder(channel)}"


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically and durably: it is on disk when this returns."""
    write_text(path, json.dumps(value, separators=(",", ":")))


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically and durably: it is on disk when this returns."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".", delete=False) as file:
        try:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            with suppress(FileNotFoundError):  # it was renamed already
                os.unlink(file.name)
            raise
    sync_folder(path.parent)


def sync_file(path: str | Path) -> None:
    """Sync a file's content to disk."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """Sync a folder's entries to disk."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def make_folder(root: Path, folder: str) -> Path:
    """Make a folder below the root, with its parents, durably."""
    path = root
    for part in Path(folder).parts:
        parent, path = path, path / part
        if not path.is_dir():
            path.mkdir(exist_ok=True)
            sync_folder(parent)
    return path


def make_root(root: Path) -> None:
    """Make the root folder of an export, with its parents, durably."""
    if not root.is_dir():
        make_folder(Path(root.anchor), str(root.relative_to(root.anchor)))


def _sync(path: str | Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
