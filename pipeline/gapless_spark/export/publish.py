"""Shows a batch that counts to readers. Doing it again changes nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from gapless_spark.export.errors import OtherExport
from gapless_spark.export.folder import make_folder, sync_folder
from gapless_spark.export.ledger import Entry, Open, Published
from gapless_spark.export.task import Extension

COPIES = 64
"""The most row groups that a plain file gets by copying; then its small row groups are merged."""
TIER = 16
"""The number of files of one level that are merged into one file of the next level, in a table."""


class Publisher(Protocol):
    """What a format does to show batches to readers."""

    def apply(self, entry: Entry) -> None:
        """Show the whole batch, unless it is shown already. Raises `OSError` and `GaplessSparkError`."""

    def files(self) -> list[str]:
        """The paths of all files that readers see."""

    def extensions(self, files: tuple[Open, ...]) -> tuple[Extension, ...]:
        """For the open files of a partition: how the next batch's tasks extend them, one task each."""

    def merges(self, entry: Entry) -> dict[str, tuple[Extension, ...]]:
        """By partition, the files to merge now, in a separate entry."""


class Plain:
    """A folder of Parquet files. At any moment readers see each message once: a new file appears complete,
    and an extended file replaces the one with its first rows."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def apply(self, entry: Entry) -> None:
        put_in_place(self._root, entry.files)

    def files(self) -> list[str]:
        return [str(path) for path in sorted(self._root.glob("date=*/**/*.parquet"))]

    def extensions(self, files: tuple[Open, ...]) -> tuple[Extension, ...]:
        return tuple(
            Extension(copy=file.path, path=file.path)
            if file.groups < COPIES
            else Extension(merge=(file.path,), path=file.path)
            for file in files
        )

    def merges(self, entry: Entry) -> dict[str, tuple[Extension, ...]]:
        return {}


class Table:
    """The common part of table formats. Files never change. Small ones are merged by commits that add no
    rows, so that a reader of the table's changes sees each row once."""

    def extensions(self, files: tuple[Open, ...]) -> tuple[Extension, ...]:
        return ()

    def merges(self, entry: Entry) -> dict[str, tuple[Extension, ...]]:
        found = {folder: tier(files) for folder, files in entry.open.items()}
        return {folder: (extension,) for folder, extension in found.items() if extension.merge}


def tier(files: tuple[Open, ...]) -> Extension:
    """The merge that is due: files of one level into one of the next, so that a row is rewritten only once
    for each power of `TIER`."""
    merged: list[str] = []
    level = 0
    while len(same := [file.path for file in files if file.level == level]) + (level > 0) >= TIER:
        merged += same
        level += 1
    key = (files[0].date, files[0].channel) if files else None
    return Extension(key=key, merge=tuple(merged), level=level)


def put_in_place(root: Path, files: tuple[Published, ...]) -> None:
    """Rename the files that are still staged, durably.

    A staged file that is missing was renamed before; then its target must exist with the length that was
    written. Raises `OtherExport` if it does not.
    """
    folders = set()
    for file in files:
        target = root / file.path
        folders.add(make_folder(root, str(Path(file.path).parent)))
        try:
            os.replace(root / file.staged, target)
        except FileNotFoundError:
            _check_shown(target, file.bytes)
    for folder in folders:
        sync_folder(folder)


def _check_shown(target: Path, size: int) -> None:
    # A shorter file is the one from before the batch extended it.
    if not target.is_file():
        wrong = "is missing: it was removed after this export wrote it"
    elif (found := target.stat().st_size) != size:
        wrong = f"has {found} bytes and was written with {size}: it, or _gapless/staging, was changed"
    else:
        return
    raise OtherExport(f"{target} {wrong}. Put it back, or export to a new folder") from None
