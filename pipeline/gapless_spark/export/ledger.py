"""An export's own books in `DIR/_gapless`: what it is, who writes it, and one entry a batch.

    lock               held (flock) by the one process that writes
    export.json        what the first run fixed
    batches/N.json     batch N, from the moment on at which it counts
    staging/RUN/       files of a batch that does not count yet

A batch counts once its entry is there. What is left to do then (renames, the commit of a table) is the same
however often it is done, so the next run does it again for the last entry before anything else. Until then
the staged files of that entry are the only copy of its messages, whose ids are not read again: nothing
removes a staged file that the last entry names.
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
    """A file of a partition that later batches may extend, or merge with others. `level`: how often its rows
    were merged; `groups`: its row groups."""

    date: str
    channel: str | None
    path: str
    bytes: int
    rows: int
    groups: int
    level: int = 0


@dataclass(frozen=True, slots=True)
class Published:
    """A file that a batch adds. `staged` and `path` are relative to the root; `replaces` are files whose rows
    are in this one too, from now on in their place."""

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
    """Since the first run: messages, and files with their bytes."""

    rows: int = 0
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """Batch `number`: the messages with `lower < id <= upper`, or, where these are equal, files that take the
    place of others. `known` is the digest of retention's marks
    beyond `upper`, `open` what later batches may extend, by partition."""

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
    """What the first run fixed. `export_id` tells a table's commits which export they are of; `start` is the
    id after which it begins, `known` the digest of what retention had taken by then."""

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
        """Take the folder. Raises `FolderBusy`, `FolderTaken`, and `OSError` where it cannot be written."""
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
        """Raise `FolderTaken` where the folder holds something that is no export."""
        strange = [name for name in os.listdir(self.root) if name != HIDDEN] if self.root.exists() else []
        if strange and not (self.home / "export.json").is_file():
            raise FolderTaken(
                f"{self.root} holds something else ({', '.join(sorted(strange)[:3])}…): give a folder that"
                " is new, empty or an export"
            )

    def close(self) -> None:
        """Let go of the folder. What this run staged and does not count is removed."""
        if self._lock is None:
            return
        try:
            # What cannot be removed now, or is not known to be junk, is swept by the next run.
            with suppress(OSError, ValueError, KeyError, TypeError):
                self._clear([self.root / self.staging])
        finally:
            os.close(self._lock)
            self._lock = None

    def charter(self) -> Charter | None:
        """What the first run fixed; None: there was none. Raises `OtherExport` for what cannot be read."""
        path = self.home / "export.json"
        if not path.is_file():
            return None
        return read_charter(path)

    def begin(self, charter: Charter) -> None:
        """Write what this first run fixes."""
        write_json(self.home / "export.json", charter_json(charter))
        sync_folder(self.root)

    def last(self) -> Entry | None:
        """The last batch that counts."""
        numbers = self._numbers()
        if not numbers:
            return None
        return _entry(json.loads(self._path(max(numbers)).read_text()))

    def count(self, entry: Entry) -> None:
        """From the return of this on the batch counts, whatever happens."""
        # Its files are on disk; their names must be, too, before anything relies on them.
        sync_folder(self.root / self.staging)
        write_json(self._path(entry.number), asdict(entry))
        old = self._path(entry.number - KEPT_ENTRIES)
        old.unlink(missing_ok=True)

    def sweep(self) -> int:
        """Remove what runs left that were killed, and make room for this one's files. How many are gone."""
        gone = self._clear((self.home / "staging").glob("*"))
        for folder in (self.home, self.home / "batches"):
            for file in folder.glob(".*"):
                file.unlink(missing_ok=True)
        make_folder(self.root, self.staging)
        return gone

    def _clear(self, folders: Iterable[Path]) -> int:
        """Remove folders of staged files, but for the files that the last entry names. How many are gone."""
        last = self.last()
        needed = {self.root / file.staged for file in last.files} if last is not None else set[Path]()
        gone = 0
        for folder in folders:
            files = [file for file in folder.glob("*") if file not in needed]
            for file in files:
                file.unlink(missing_ok=True)
            gone += len(files)
            # A file that is needed stays, and the folder with it.
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
        "namespace": selection.namespace,
        "channels": list(selection.patterns),
        "since": selection.since.isoformat() if selection.since else None,
        "until": selection.until.isoformat() if selection.until else None,
    }


def read_charter(path: Path) -> Charter:
    """The charter in an `export.json`. Raises `OtherExport` where another version wrote it."""
    try:
        told = json.loads(path.read_text())
        layout = int(told["layout"])
    except (ValueError, KeyError, TypeError):
        raise OtherExport(f"{path} cannot be read: it is not what an export writes") from None
    wanted = Shape(by_channel=bool(told.get("by_channel"))).layout
    if layout != wanted:
        advice = (
            "export to a new folder, or go on with the version that made it"
            if layout < wanted
            else "update gapless-spark"
        )
        raise OtherExport(
            f"{path.parent.parent} was made in layout {layout}, and this version writes {wanted}: {advice}"
        )
    since, until = (told[name] and datetime.fromisoformat(told[name]) for name in ("since", "until"))
    selection = Selection(told["namespace"], tuple(told["channels"]), since, until)
    shape = Shape(told["format"], told["by_channel"], selection)
    return Charter(told["export_id"], told["epoch"], told["start"], told["known"], shape)


def _entry(told: dict[str, Any]) -> Entry:
    files = tuple(Published(**{**file, "replaces": tuple(file["replaces"])}) for file in told["files"])
    open_ = {key: tuple(Open(**one) for one in files_) for key, files_ in told["open"].items()}
    return Entry(**{**told, "totals": Totals(**told["totals"]), "files": files, "open": open_})
