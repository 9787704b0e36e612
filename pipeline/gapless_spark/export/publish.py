"""From a batch that counts to what readers see. Doing it again changes nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from gapless_spark.export.errors import OtherExport
from gapless_spark.export.folder import make_folder, sync_folder
from gapless_spark.export.ledger import Entry, Open, Published
from gapless_spark.export.task import Extension

COPIES = 64
"""A plain file gets so many row groups by copying; then its small ones are merged."""
TIER = 16
"""So many files of a table, of one level, are merged into one of the next."""


class Publisher(Protocol):
    """How a format shows batches."""

    def apply(self, entry: Entry) -> None:
        """Show the batch, whole, unless it is shown already. Raises `OSError` and `GaplessSparkError`."""

    def extensions(self, files: tuple[Open, ...]) -> tuple[Extension, ...]:
        """What the next files of a partition do with those that may still grow, a task each."""

    def merges(self, entry: Entry) -> dict[str, tuple[Extension, ...]]:
        """By partition, what is to be merged now, in an entry of its own."""


class Plain:
    """A folder of Parquet files. What is seen at any moment has each message once: a new file appears under
    its name whole, and a longer one takes the place of the one whose rows it begins with."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def apply(self, entry: Entry) -> None:
        put_in_place(self._root, entry.files)

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
    """What tables have in common: files never change, and small ones are merged by commits that add no rows,
    so that whoever reads the table's changes sees each row once."""

    def extensions(self, files: tuple[Open, ...]) -> tuple[Extension, ...]:
        return ()

    def merges(self, entry: Entry) -> dict[str, tuple[Extension, ...]]:
        found = {folder: tier(files) for folder, files in entry.open.items()}
        return {folder: (extension,) for folder, extension in found.items() if extension.merge}


def tier(files: tuple[Open, ...]) -> Extension:
    """Like merged with like, so that a row is written anew once for each power of `TIER`."""
    merged: list[str] = []
    level = 0
    while len(same := [file.path for file in files if file.level == level]) + (level > 0) >= TIER:
        merged += same
        level += 1
    key = (files[0].date, files[0].channel) if files else None
    return Extension(key=key, merge=tuple(merged), level=level)


def put_in_place(root: Path, files: tuple[Published, ...]) -> None:
    """Rename what is still staged, durably. Staged and gone means: renamed before, and then it is there as
    long as it was written. Raises `OtherExport` where it is not."""
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
    # A shorter one is the file as it was before the batch extended it.
    if not target.is_file():
        wrong = "is missing: it was removed after this export wrote it"
    elif (found := target.stat().st_size) != size:
        wrong = f"has {found} bytes and was written with {size}: it, or _gapless/staging, was changed"
    else:
        return
    raise OtherExport(f"{target} {wrong}. Put it back, or export to a new folder") from None
