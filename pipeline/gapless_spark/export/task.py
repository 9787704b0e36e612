"""A Spark task of an export: reads its range of ids as Arrow and writes it as Parquet files, by partition.

It writes only into the run's staging folder, under unique names, and answers with one line of JSON for each
file. So a task that runs twice, or longer than its driver, does not change the export.
"""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gapless_spark.errors import GaplessSparkError
from gapless_spark.export.errors import from_os, to_wire
from gapless_spark.export.folder import Key, partition_folder
from gapless_spark.export.options import Shape
from gapless_spark.export.parts import Part

if TYPE_CHECKING:
    import pyarrow as pa

ANSWERS = "array<string>"
GROUP_ROWS = 131_072
GROUP_BYTES = 48 * 1024 * 1024
PINNED_BYTES = 160 * 1024 * 1024
OPEN_FILES = 200


@dataclass(frozen=True, slots=True)
class Extension:
    """The files that a task combines with its rows of a partition. Paths are relative to the root.

    `copy`: the file that is copied to the front. `merge`: files that are read and written again. `path`: the
    name of the new file if it replaces one.
    """

    key: Key | None = None
    copy: str | None = None
    merge: tuple[str, ...] = ()
    path: str | None = None
    level: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """A batch, as all of its tasks get it.

    `ranges`: the bounds of ids, (lower, upper], one range for each task. `extensions`: by partition folder,
    one for each task, because two tasks must not extend one file. Without ranges there is one task, which
    only merges the files of the extensions.
    """

    url: str = field(repr=False)
    snapshot: str
    root: str
    staging: str
    shape: Shape
    number: int
    ranges: tuple[tuple[int, int], ...]
    file_bytes: int
    extensions: Mapping[str, tuple[Extension, ...]] = field(default_factory=dict)


def run(work: Work, number: int) -> list[str]:
    """Run task `number` of a batch. Returns one JSON answer for each file.

    An error is an answer too, so that its text reaches the driver.
    """
    try:
        return [json.dumps(answer) for answer in _one(work, number)]
    except GaplessSparkError as error:
        return [json.dumps({"error": to_wire(error)})]
    except OSError as error:
        return [json.dumps({"error": to_wire(from_os(error, work.root))})]


def _one(work: Work, number: int) -> list[dict[str, object]]:
    from gapless_spark.export.partitioning import split_batch
    from gapless_spark.ranges import Range
    from gapless_spark.reading import read_range

    writer = Writer(work, number)
    try:
        shape = work.shape
        if not work.ranges:
            writer.merge()
            return writer.finish()
        lower, upper = work.ranges[number]
        for batch in read_range(
            work.url, shape.selection, shape.columns, Range(lower, upper), snapshot=work.snapshot
        ):
            for key, piece in split_batch(batch, shape.by_channel):
                writer.add(key, piece, batch.nbytes)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


@dataclass(slots=True)
class _Pile:
    """The rows of a partition that wait to become a row group, and their file."""

    key: Key
    extension: Extension
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    part: Part | None = None
    fresh: bool = True


class Writer:
    """Writes row groups and files of a good size, for many partitions, in bounded memory.

    A piece is a slice that keeps its whole batch in memory. When these batches reach `PINNED_BYTES`,
    everything is written, in smaller row groups than otherwise.
    """

    def __init__(self, work: Work, number: int) -> None:
        self._work = work
        self._number = number
        self._piles: dict[Key, _Pile] = {}
        self._pinned = 0
        self._open: OrderedDict[int, Part] = OrderedDict()
        self._files: list[tuple[_Pile, Part, Extension]] = []

    def add(self, key: Key, piece: pa.RecordBatch, pinned: int) -> None:
        """Add rows of a partition. They keep `pinned` bytes in memory until they are written."""
        pile = self._piles.get(key)
        if pile is None:
            pile = self._piles[key] = self._begin(key)
        self._pile_up(pile, piece)
        # A batch with several pieces is counted several times, which is the safe side.
        self._pinned += pinned
        if pile.rows >= GROUP_ROWS or pile.bytes >= GROUP_BYTES:
            self._write(pile)
            if not any(other.batches for other in self._piles.values()):
                self._pinned = 0
        if self._pinned >= PINNED_BYTES:
            for other in self._piles.values():
                self._write(other)
            self._pinned = 0

    def merge(self) -> None:
        """Write the files of the extensions again, without further rows."""
        for (extension,) in self._work.extensions.values():
            assert extension.key is not None
            self._piles[extension.key] = self._begin(extension.key)

    def finish(self) -> list[dict[str, object]]:
        """Write everything to disk. Returns one answer for each file."""
        for pile in self._piles.values():
            self._write(pile)
        for _, part, _ in self._files:
            part.sync()
        return [self._answer(nth, *file) for nth, file in enumerate(self._files)]

    def abandon(self) -> None:
        """Close the files without answering, so that they are not used."""
        for _, part, _ in self._files:
            part.abandon()

    def _begin(self, key: Key) -> _Pile:
        extensions = self._work.extensions.get(partition_folder(*key), ())
        pile = _Pile(key, extensions[self._number] if self._number < len(extensions) else Extension())
        for path in pile.extension.merge:
            self._merge(pile, Path(self._work.root, path))
        return pile

    def _merge(self, pile: _Pile, path: Path) -> None:
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=GROUP_ROWS):
                self._pile_up(pile, batch)
                if pile.rows >= GROUP_ROWS or pile.bytes >= GROUP_BYTES:
                    self._write(pile)

    def _pile_up(self, pile: _Pile, piece: pa.RecordBatch) -> None:
        pile.batches.append(piece.select(list(self._work.shape.columns)))
        pile.rows += piece.num_rows
        pile.bytes += piece.nbytes

    def _write(self, pile: _Pile) -> None:
        import pyarrow as pa

        if not pile.batches:
            return
        table = pa.Table.from_batches(pile.batches)
        pile.batches, pile.rows, pile.bytes = [], 0, 0
        part = pile.part or self._part(pile)
        self._make_room(part)
        part.write(table)
        if part.bytes >= self._work.file_bytes:
            part.finish()
            self._open.pop(id(part), None)
            pile.part = None

    def _part(self, pile: _Pile) -> Part:
        path = Path(self._work.root, self._work.staging, f"{uuid.uuid4().hex}.part")
        part = pile.part = Part(path, self._work.shape.columns)
        # Only the first file of a partition extends earlier files.
        extension = pile.extension if pile.fresh else Extension()
        if extension.copy is not None:
            part.extend(Path(self._work.root, extension.copy))
        pile.fresh = False
        self._files.append((pile, part, extension))
        return part

    def _make_room(self, part: Part) -> None:
        """Keep at most `OPEN_FILES` files open: those used last."""
        self._open[id(part)] = part
        self._open.move_to_end(id(part))
        while len(self._open) > OPEN_FILES:
            _, oldest = self._open.popitem(last=False)
            oldest.finish()

    def _answer(self, nth: int, pile: _Pile, part: Part, extension: Extension) -> dict[str, object]:
        folder = partition_folder(*pile.key)
        name = f"{self._work.number:08d}-{self._number:04d}-{nth:04d}-{part.path.stem[:8]}.parquet"
        return {
            "staged": f"{self._work.staging}/{part.path.name}",
            "path": extension.path or f"{folder}/{name}",
            "rows": part.rows,
            "bytes": part.bytes,
            "groups": part.groups,
            "date": pile.key[0],
            "channel": pile.key[1],
            "first_id": part.first_id,
            "last_id": part.last_id,
            "level": extension.level,
            "replaces": [*([extension.copy] if extension.copy else []), *extension.merge],
        }
