"""The books of an export, in `DIR/_gapless`: its options, its lock, and an entry for each batch.

    lock               held (flock) by the one process that writes
    export.json        the charter: what the first run fixed
    batches/N.json     the entry of batch N; the batch counts once the entry exists
    staging/RUN/       files of a batch that does not count yet

The steps after the entry (renames, the commit of a table) can be repeated without harm, so each run first
repeats them for the last entry. Until they are done, the staged files of that entry are the only copy of its
messages, because their ids are not read again. So a staged file that the last entry names is never removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from gapless_spark.export.errors import FolderBusy, FolderTaken, OtherExport
from gapless_spark.export.folder import HIDDEN, make_folder, make_root, sync_folder, write_json
from gapless_spark.export.options import Shape
from gapless_spark.selection import Selection

KEPT_ENTRIES = 100


@dataclass(frozen=True, slots=True)
class Open:
    """A file of a partition that later batches may extend or merge. `level`: how often its rows were merged;
    `groups`: its number of row groups."""

    date: str
    channel: str | None
    path: str
    bytes: int
    rows: int
    groups: int
    level: int = 0


@dataclass(frozen=True, slots=True)
class Published:
    """A file that a batch adds. `staged` and `path` are relative to the root. `replaces` are the files that
    it takes the place of; it contains their rows."""

    staged: str
    path: str
    rows: int
    bytes: int
    groups: int
    date: str
    channel: str | None
    first_id: int
    last_id: int
    level: int = 0
    replaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Totals:
    """The messages, files and bytes of the whole export."""

    rows: int = 0
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """The record of batch `number`: the messages with `lower < id <= upper`. If the two are equal, it is a
    merge that only replaces files. `known` is the digest of retention's marks beyond `upper`; `open` has the
    files that later batches may extend, by partition."""

    number: int
    lower: int
    upper: int
    rows: int
    known: str
    totals: Totals
    files: tuple[Published, ...] = ()
    open: dict[str, tuple[Open, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Charter:
    """What the first run fixed. `export_id` marks a table's commits as those of this export. `start` is the
    id after which the export begins, and `known` the digest of retention's marks beyond it at that time."""

    export_id: str
    epoch: str
    start: int
    known: str
    shape: Shape


class Ledger:
    """The books of one folder, locked from `open` to `close`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / HIDDEN
        self.staging = f"{HIDDEN}/staging/{uuid.uuid4().hex}"
        self._lock: int | None = None

    def open(self) -> None:
        """Lock the folder. Raises `FolderBusy`, `FolderTaken`, and `OSError` if it cannot be written."""
        make_root(self.root)
        self.check_folder()
        (self.home / "batches").mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.home / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise FolderBusy(
                f"another export writes into {self.root} (process {holder}): wait for it, or stop it"
            ) from None
        self._lock = descriptor
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

    def check_folder(self) -> None:
        """Raise `FolderTaken` if the folder holds something other than an export."""
        strange = [name for name in os.listdir(self.root) if name != HIDDEN] if self.root.exists() else []
        if strange and not (self.home / "export.json").is_file():
            raise FolderTaken(
                f"{self.root} holds something else ({', '.join(sorted(strange)[:3])}…): give a new or empty"
                " folder, or an export"
            )

    def close(self) -> None:
        """Unlock the folder, after removing the files that this run staged and that do not count."""
        if self._lock is None:
            return
        try:
            # If this fails, the next run sweeps them.
            with suppress(OSError, ValueError, KeyError, TypeError):
                self._clear([self.root / self.staging])
        finally:
            os.close(self._lock)
            self._lock = None

    def charter(self) -> Charter | None:
        """The charter; None before the first run. Raises `OtherExport` if it cannot be read."""
        path = self.home / "export.json"
        if not path.is_file():
            return None
        return read_charter(path)

    def begin(self, charter: Charter) -> None:
        """Write the charter, in the first run."""
        write_json(self.home / "export.json", charter_json(charter))
        sync_folder(self.root)

    def last(self) -> Entry | None:
        """The entry of the last batch that counts; None if there is none."""
        numbers = self._numbers()
        if not numbers:
            return None
        return _entry(json.loads(self._path(max(numbers)).read_text()))

    def count(self, entry: Entry) -> None:
        """Write an entry. Once this returns, the batch counts, even after a crash."""
        # The tasks synced the files' contents. Their names must be on disk before the entry.
        sync_folder(self.root / self.staging)
        write_json(self._path(entry.number), asdict(entry))
        old = self._path(entry.number - KEPT_ENTRIES)
        old.unlink(missing_ok=True)

    def sweep(self) -> int:
        """Remove the files that killed runs left, and make this run's staging folder. Returns how many files
        were removed."""
        gone = self._clear((self.home / "staging").glob("*"))
        for folder in (self.home, self.home / "batches"):
            for file in folder.glob(".*"):
                file.unlink(missing_ok=True)
        make_folder(self.root, self.staging)
        return gone

    def _clear(self, folders: Iterable[Path]) -> int:
        """Remove folders of staged files, except files that the last entry names. Returns how many files were
        removed."""
        last = self.last()
        needed = {self.root / file.staged for file in last.files} if last is not None else set[Path]()
        gone = 0
        for folder in folders:
            files = [file for file in folder.glob("*") if file not in needed]
            for file in files:
                file.unlink(missing_ok=True)
            gone += len(files)
            # The folder stays if it has a file that is needed.
            with suppress(OSError):
                folder.rmdir()
        return gone

    def _numbers(self) -> list[int]:
        return [int(path.stem) for path in (self.home / "batches").glob("[0-9]*.json")]

    def _path(self, number: int) -> Path:
        return self.home / "batches" / f"{number:012d}.json"


def charter_json(charter: Charter) -> dict[str, Any]:
    """The charter as `export.json` has it."""
    selection = charter.shape.selection
    return {
        "layout": charter.shape.layout,
        "export_id": charter.export_id,
        "epoch": charter.epoch,
        "start": charter.start,
        "known": charter.known,
        "format": charter.shape.format,
        "by_channel": charter.shape.by_channel,
        "changes": charter.shape.changes,
        "namespace": selection.namespace,
        "channels": list(selection.patterns),
        "since": selection.since.isoformat() if selection.since else None,
        "until": selection.until.isoformat() if selection.until else None,
    }


def read_charter(path: Path) -> Charter:
    """The charter in an `export.json`. Raises `OtherExport` if it is invalid or of another layout."""
    try:
        read = json.loads(path.read_text())
        layout = int(read["layout"])
    except (ValueError, KeyError, TypeError):
        raise OtherExport(f"{path} is not a valid charter of an export") from None
    changes = bool(read.get("changes"))
    wanted = Shape(by_channel=bool(read.get("by_channel")), changes=changes).layout
    if layout != wanted:
        advice = (
            "export to a new folder, or continue with the version that made it"
            if layout < wanted
            else "update gapless-spark"
        )
        raise OtherExport(
            f"{path.parent.parent} was made in layout {layout}, and this version writes {wanted}: {advice}"
        )
    since, until = (read[name] and datetime.fromisoformat(read[name]) for name in ("since", "until"))
    selection = Selection(read["namespace"], tuple(read["channels"]), since, until)
    shape = Shape(read["format"], read["by_channel"], selection, changes)
    return Charter(read["export_id"], read["epoch"], read["start"], read["known"], shape)


def _entry(read: dict[str, Any]) -> Entry:
    files = tuple(Published(**{**file, "replaces": tuple(file["replaces"])}) for file in read["files"])
    open_ = {key: tuple(Open(**one) for one in files_) for key, files_ in read["open"].items()}
    return Entry(**{**read, "totals": Totals(**read["totals"]), "files": files, "open": open_})
