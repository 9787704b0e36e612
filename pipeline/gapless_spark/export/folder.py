"""Names and durable steps in the folder of an export.

Whatever is not part of the export yet lies in `_gapless`, and its name does not end in `.parquet`: Spark
leaves out folders that begin with an underscore, others take every file that a pattern such as `**/*.parquet`
finds.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

HIDDEN = "_gapless"
_SPECIAL = frozenset("\"#%'*/:=?\\{[]^")
_LONGEST_NAME = 255
_NULL = "__HIVE_DEFAULT_PARTITION__"
"""What stands for no value at all in the name of a folder: a channel that is called so needs another."""


def escape(value: str) -> str:
    """A value as it stands in the name of a folder, as Hive and Spark write it."""
    if value == _NULL:
        return f"%5F{value[1:]}"
    return "".join(f"%{ord(c):02X}" if c in _SPECIAL or ord(c) < 32 or ord(c) == 127 else c for c in value)


def partition_folder(date: str, channel: str | None) -> str:
    """The folder, below the root, of a day (UTC, YYYY-MM-DD) and perhaps a channel.

    Raises `OSError` for a channel whose name is too long for a folder.
    """
    if channel is None:
        return f"date={date}"
    name = f"channel={escape(channel)}"
    if len(name) > _LONGEST_NAME:
        raise OSError(f"channel {channel!r} is too long for a folder's name: export without --by-channel")
    return f"date={date}/{name}"


def write_json(path: Path, value: Any) -> None:
    """Put a file of JSON in place, all of it or nothing, on disk when this returns."""
    write_text(path, json.dumps(value, separators=(",", ":")))


def write_text(path: Path, text: str) -> None:
    """The same of plain text."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".", delete=False) as file:
        try:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
    sync_folder(path.parent)


def sync_file(path: str | Path) -> None:
    """The file's content is on disk when this returns."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """The names in the folder are on disk when this returns."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def make_folder(root: Path, folder: str) -> Path:
    """The folder below the root, made with all that leads to it, durably."""
    path = root
    for part in Path(folder).parts:
        parent, path = path, path / part
        if not path.is_dir():
            path.mkdir(exist_ok=True)
            sync_folder(parent)
    return path


def make_root(root: Path) -> None:
    """The folder of an export itself, made with all that leads to it, durably."""
    if not root.is_dir():
        make_folder(Path(root.anchor), str(root.relative_to(root.anchor)))


def _sync(path: str | Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
