"""Names and durable steps in the folder of an export.

Whatever is not part of the export yet lies in `_gapless`, and its name does not end in `.parquet`: Spark
leaves out folders that begin with an underscore, others take every file that a pattern such as `**/*.parquet`
finds.
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
"""A partition: a day of UTC as YYYY-MM-DD, and a channel where there is a folder for each."""

HIDDEN = "_gapless"
_BEGINNING = "c."
"""A name that begins so is hidden from nobody, reserved by no system, and no number."""
_AS_IT_IS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789._-@")
_LONGEST = 120
_DIGEST = 40


def channel_folder(channel: str) -> str:
    """The name of a channel's folder. Different channels have different ones, also where a file system takes
    large and small letters for the same, and no name is longer than `_LONGEST`.

    It is for people and for patterns of names: no reader takes a value from it (it has no `=`), for readers
    guess types, and `007` and `7` would become one. The column `channel` is in the files. What is no small
    letter, digit, or one of `._-@` stands as `~` and the hexadecimal digits of its UTF-8; a name that would
    be too long is cut, and has a digest after `~~`.
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
    """The folder, below the root, of a day (UTC, YYYY-MM-DD) and perhaps a channel."""
    return f"date={date}" if channel is None else f"date={date}/{channel_folder(channel)}"


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
            with suppress(FileNotFoundError):  # it is in place already
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
