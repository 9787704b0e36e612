"""A Parquet file that grows by row groups, even after it was finished.

A Parquet file ends with its footer. Readers find all row groups from there, and skip what it does not
mention. So a finished file is extended by further row groups after its footer, and then a new footer for all
of them. The old bytes stay as they are: a reader that knows the old length reads the old file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gapless_spark.columns import BINARY, arrow_schema
from gapless_spark.export.folder import sync_file

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_DICTIONARY = (
    *("channel", "type", "key", "sender", "headers.key_value.key", "headers.key_value.value"),
    *("action", "annotation", "mode"),
)
_DELTA = ("id", "seq", "created_at")
_COPY_BYTES = 4 * 1024 * 1024


@dataclass(slots=True)
class Part:
    """The file at `path`, which exists after the first write. `first_id` and `last_id` are the bounds of all
    its rows, those of the file that it extends included."""

    path: Path
    columns: Sequence[str]
    rows: int = 0
    groups: int = 0
    first_id: int = 2**63 - 1
    last_id: int = 0
    _sink: pa.NativeFile | None = None
    _writer: pq.ParquetWriter | None = None
    _collected: list[pq.FileMetaData] = field(default_factory=list)
    _known: pq.FileMetaData | None = None
    _base: Path | None = None

    @property
    def bytes(self) -> int:
        """The file's length, without the bytes that Arrow has not written yet."""
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def is_open(self) -> bool:
        return self._writer is not None

    def extend(self, base: Path) -> None:
        """Begin with the rows of a finished file, which does not change. Call it before the first write."""
        import pyarrow.parquet as pq

        assert self._base is None
        assert not self.is_open
        self._base, self._known = base, pq.read_metadata(base)
        self.rows, self.groups = self._known.num_rows, self._known.num_row_groups
        self.first_id, self.last_id = id_bounds(self._known)

    def write(self, table: pa.Table) -> None:
        """Add a row group."""
        import pyarrow.compute as pc

        if self._writer is None:
            self._open()
        assert self._writer is not None
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        bounds = pc.min_max(table.column("id")).as_py()
        self.first_id = min(self.first_id, bounds["min"])
        self.last_id = max(self.last_id, bounds["max"])
        self.rows += table.num_rows
        self.groups += 1

    def finish(self) -> None:
        """Write the footer. A later `write` begins with a copy of the finished file."""
        if self._writer is None or self._sink is None:
            return
        self._writer.close()
        added = self._collected.pop()
        if self._known is None:
            self._known = added
        else:
            self._known.append_row_groups(added)
            # This first writes the 4 bytes with which a Parquet file starts. Nothing points to them.
            self._known.write_metadata_file(self._sink)
        self._sink.close()
        self._writer = self._sink = None
        self._base = self.path

    def sync(self) -> None:
        """Finish the file and sync it to disk."""
        self.finish()
        sync_file(self.path)

    def abandon(self) -> None:
        """Close the file without caring about its content."""
        if self._writer is not None:
            # An open writer would write its footer when it is garbage-collected, and fail on the closed sink.
            with suppress(Exception):
                self._writer.close()
            self._writer.is_open = False
        if self._sink is not None:
            self._sink.close()
        self._writer = self._sink = None

    def _open(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        fresh = self.path.with_suffix(".new")
        self._sink = pa.OSFile(os.fspath(fresh), "wb")
        self._writer = pq.ParquetWriter(
            self._sink,
            schema_of(self.columns),
            compression="zstd",
            compression_level=1,
            use_dictionary=[name for name in _DICTIONARY if name.split(".")[0] in self.columns],
            column_encoding=dict.fromkeys(_DELTA, "DELTA_BINARY_PACKED"),
            # Statistics of payloads do not help a reader to skip row groups.
            write_statistics=[name for name in self.columns if name not in ("data", "headers", BINARY)],
            metadata_collector=self._collected,
        )
        if self._base is not None:
            self._copy(self._base)
        os.replace(fresh, self.path)

    def _copy(self, base: Path) -> None:
        """Copy the old file's bytes to the same positions. The writer needs an empty sink and begins it with
        the 4 magic bytes, so the copy goes on after them."""
        assert self._sink is not None
        with base.open("rb") as source:
            source.seek(self._sink.tell())
            while block := source.read(_COPY_BYTES):
                self._sink.write(block)


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The schema of a file with these columns."""
    return arrow_schema(columns)


def id_bounds(metadata: pq.FileMetaData) -> tuple[int, int]:
    """The smallest and the largest id of a file, from the statistics in its footer."""
    first, last = 2**63 - 1, 0
    for number in range(metadata.num_row_groups):
        statistics = metadata.row_group(number).column(0).statistics
        first, last = min(first, statistics.min), max(last, statistics.max)
    return first, last
