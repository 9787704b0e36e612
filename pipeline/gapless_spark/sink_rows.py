"""Turns rows of a DataFrame into arguments of `gapless.spark_stage` and `spark_stage_changes`.

This module refuses what cannot be sent: columns of another type, rows without exactly one payload, and rows
too large for a call. The database decides whether a row may become a message.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gapless_spark.columns import CHANGE_COLUMNS
from gapless_spark.errors import BadOption
from gapless_spark.selection import NAME_RULE, is_name
from gapless_spark.sink_errors import BadRow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

CHUNK_ROWS: Final = 5_000
CHUNK_BYTES: Final = 4 * 1024 * 1024
"""The limits of one call, and of one row. They are several times the largest message."""

GIVEN: Final = frozenset({"id", "seq", "sender", "created_at", "expires_at"})
"""Columns that the service sets. They are ignored, so that rows of a read can be written."""
TAKEN: Final = ("channel", "type", "key", "data", "binary", "headers", "ttl", *CHANGE_COLUMNS)

_PAYLOADS: Final = frozenset({"data", "binary"})
_TEXTS: Final = ("channel", "type", "key", "data", "action", "annotation", "mode")
_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows, how many of them change other messages, the bytes of their payloads, and their channels.
    `arguments` has one row: the array arguments of `gapless.spark_stage`, in order, and with changes the
    further ones of `gapless.spark_stage_changes`. `bad_row` makes the error about one of the rows, counted
    from 0 in the chunk, and why."""

    rows: int
    changes: int
    size: int
    names: list[str]
    arguments: dict[str, pa.Array]
    bad_row: Callable[[int, str], BadRow]


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The columns of the DataFrame that make the messages. `channel` is the channel from the option, for all
    rows; then the column of that name is not read."""

    present: frozenset[str]
    channel: str | None

    @property
    def changes(self) -> frozenset[str]:
        """Those that say which message a row changes, and how."""
        return self.present.intersection(CHANGE_COLUMNS)

    def chunks(self, batches: Iterator[pa.RecordBatch], place: str) -> Iterator[Chunk]:
        """The rows of a partition in their order. Raises `BadRow`, which names a row that cannot be sent,
        counted from 0 in the partition, and `place`."""
        start = 0
        for batch in batches:
            for part in _parts(batch):
                yield _Slice(self, part, start, place).chunk()
                start += part.num_rows


def sink_columns(schema: StructType, channel: str | None) -> SinkColumns:
    """The columns that the sink uses of a DataFrame with this schema. Raises `BadOption` with advice."""
    from pyspark.sql.types import NullType

    present = set()
    for field in schema.fields:
        if field.name in GIVEN:
            continue
        if field.name not in TAKEN:
            raise BadOption(
                f"column {field.name!r}: the sink does not know it. Messages are made of {', '.join(TAKEN)};"
                " drop it, or put it into data with to_json(struct(...))"
            )
        if isinstance(field.dataType, NullType):
            continue
        if wrong := _WANTED[field.name](field.dataType):
            raise BadOption(f"column {field.name!r} is {field.dataType.simpleString()}: {wrong}")
        present.add(field.name)
    if channel is None and "channel" not in present:
        raise BadOption("channel: is missing; give a column or the option of that name")
    if channel is not None and not is_name(channel):
        raise BadOption(f"channel: {channel[:300]!r} is no channel's name: {NAME_RULE}")
    # Of a change that says nothing more, such as a deletion, the payload may be missing.
    if not present & _PAYLOADS and "target" not in present:
        raise BadOption("data: there is no column data (the text of a JSON value), nor binary")
    return SinkColumns(frozenset(present), channel)


def _want_text(advice: str) -> Callable[[DataType], str | None]:
    def wanted(kind: DataType) -> str | None:
        from pyspark.sql.types import StringType

        return None if isinstance(kind, StringType) else advice

    return wanted


def _want_binary(kind: DataType) -> str | None:
    from pyspark.sql.types import BinaryType

    return None if isinstance(kind, BinaryType) else "it must be binary"


def _want_headers(kind: DataType) -> str | None:
    from pyspark.sql.types import MapType, StringType

    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        return None if isinstance(kind.valueType, StringType) else "its values must be strings"
    return "it must be map<string,string>"


def _want_whole(kind: DataType) -> str | None:
    from pyspark.sql.types import IntegralType

    return None if isinstance(kind, IntegralType) else "it must be a whole number, the id of a message"


def _want_boolean(kind: DataType) -> str | None:
    from pyspark.sql.types import BooleanType

    return None if isinstance(kind, BooleanType) else "it must be boolean"


def _want_seconds(kind: DataType) -> str | None:
    from pyspark.sql.types import NumericType

    return None if isinstance(kind, NumericType) else "it must be a number of seconds"


_WANTED: Final[Mapping[str, Callable[[DataType], str | None]]] = {
    "channel": _want_text("it must be a string"),
    "type": _want_text("it must be a string"),
    "key": _want_text("it must be a string; use cast(key as string)"),
    "data": _want_text(
        "it must be a string that holds JSON. Use to_json(data) for a struct, map, array or variant,"
        " and cast(data as string) for a number or boolean"
    ),
    "binary": _want_binary,
    "headers": _want_headers,
    "ttl": _want_seconds,
    "target": _want_whole,
    "action": _want_text("it must be a string"),
    "through": _want_whole,
    "annotation": _want_text("it must be a string"),
    "mode": _want_text("it must be a string"),
    "remove": _want_boolean,
}


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in slices within the limits of one call."""
    sizes = _sizes(batch, {*_TEXTS, *_PAYLOADS})
    start, size = 0, 0
    for row, bytes_of_row in enumerate(sizes):
        if row > start and (row - start >= CHUNK_ROWS or size + bytes_of_row > CHUNK_BYTES):
            yield batch.slice(start, row - start)
            start, size = row, 0
        size += bytes_of_row
    if start < batch.num_rows:
        yield batch.slice(start)


def _sizes(batch: pa.RecordBatch, columns: AbstractSet[str]) -> list[int]:
    """Bytes of each row in those of these columns that there are."""
    import pyarrow.compute as pc

    sizes = [0] * batch.num_rows
    for name in columns & set(batch.schema.names):
        column = batch.column(name)
        if column.type != "null":
            found = pc.binary_length(column).to_pylist()
            sizes = [size + (more or 0) for size, more in zip(sizes, found, strict=True)]
    return sizes


def _object(entries: list[tuple[str, str | None]]) -> str:
    """A map as the text of a JSON object. A name that is there twice stays so: the database refuses it."""
    return "{" + ",".join(f"{_encode(name)}:{_encode(value)}" for name, value in entries) + "}"


class _Slice:
    """Makes a chunk of one slice. All columns are checked before the first bad row is reported."""

    def __init__(self, columns: SinkColumns, part: pa.RecordBatch, start: int, place: str) -> None:
        self._columns = columns
        self._part = part
        self._start = start
        self._place = place
        self._bad: tuple[int, str] | None = None
        target = self._column("target")
        self._targeted = [False] * part.num_rows if target is None else target.is_valid().to_pylist()
        """Which rows change another message."""

    def chunk(self) -> Chunk:
        self._check_payloads()
        self._check_texts()
        arguments = {
            **self._channels(),
            "types": self._types(),
            "keys": self._column("key"),
            "data": self._data(),
            "binary": self._column("binary"),
            "headers": self._headers(),
            "ttls": self._ttls(),
        }
        changes = self._changes()
        if self._bad is not None:
            raise self.bad_row(*self._bad)
        listed = {name: _listed(kind, arguments[name]) for name, kind in _TYPES.items()}
        if changes:
            listed |= {name: _listed(kind, changes.get(name)) for name, kind in _CHANGE_TYPES.items()}
        size = sum(_sizes(self._part, _PAYLOADS))
        names = arguments["names"].to_pylist()
        return Chunk(self._part.num_rows, sum(self._targeted), size, names, listed, self.bad_row)

    def bad_row(self, row: int, why: str) -> BadRow:
        return BadRow(
            f"row {self._start + row} of {self._place} (counted from 0; {self._whose(row)}): {why}."
            " Nothing of this batch is stored"
        )

    def _whose(self, row: int) -> str:
        """The row's channel, and its key if it has one, so that the user can find the row."""
        parts = []
        for name in ("channel", "key"):
            own = self._columns.channel if name == "channel" else None
            if own is None and name in self._columns.present:
                own = self._part.column(name)[row].as_py()
            if own is not None:
                parts.append(f"{name} {own[:100]!r}{'…' if len(own) > 100 else ''}")
        return ", ".join(parts) or "no channel"

    def _note(self, row: int, why: str) -> None:
        if self._bad is None or row < self._bad[0]:
            self._bad = (row, why)

    def _column(self, name: str) -> pa.Array | None:
        column = self._part.column(name) if name in self._columns.present else None
        return None if column is None or column.null_count == len(column) else column

    def _check_payloads(self) -> None:
        """Exactly one payload a row, at most one in a change, and no more bytes than a call carries."""
        data, binary = self._column("data"), self._column("binary")
        rows = self._part.num_rows
        missing = [True] * rows if data is None else data.is_null().to_pylist()
        without = [True] * rows if binary is None else binary.is_null().to_pylist()
        sizes = _sizes(self._part, {*_TEXTS, *_PAYLOADS})
        each = zip(missing, without, self._targeted, sizes, strict=True)
        for row, (no_data, no_binary, targeted, size) in enumerate(each):
            if no_data and no_binary and not targeted:
                self._note(row, "data is null; the JSON text 'null' is data")
            elif not no_data and not no_binary:
                self._note(row, "has both data and binary")
            elif size > CHUNK_BYTES:
                self._note(row, f"is longer than {CHUNK_BYTES} bytes")
            else:
                continue
            return

    def _check_texts(self) -> None:
        import pyarrow.compute as pc

        for name in _TEXTS:
            if name == "channel" and self._columns.channel is not None:
                continue
            column = self._column(name)
            if column is not None and pc.any(found := pc.match_substring(column, "\0")).as_py():
                self._note(found.to_pylist().index(True), f"{name} holds a zero character")

    def _channels(self) -> dict[str, pa.Array]:
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = self._part.num_rows
        if self._columns.channel is not None:
            names, channel = pa.array([self._columns.channel]), pa.array([1] * rows, pa.int32())
            return {"names": names, "channel": channel}
        column = self._part.column("channel")
        if column.null_count:
            self._note(column.is_null().to_pylist().index(True), "channel is null")
        encoded = column.cast(pa.string()).dictionary_encode()
        return {"names": encoded.dictionary, "channel": pc.add(encoded.indices.cast(pa.int32()), 1)}

    def _types(self) -> pa.Array | None:
        import pyarrow.compute as pc

        column = self._column("type")
        return None if column is None else pc.fill_null(column, "message")

    def _data(self) -> pa.Array | None:
        import pyarrow.compute as pc

        column = self._column("data")
        if any(self._targeted):
            column = self._with_nothing(column)
        if column is None:
            return None
        # A message is one line wherever it is written. JSON has line breaks between tokens only, and so it is
        # with tabs: a text with one inside a string stays what it was, no JSON, and the database refuses it.
        for line_break in ("\n", "\r"):
            if pc.any(pc.match_substring(column, line_break)).as_py():
                column = pc.replace_substring(column, line_break, "\t")
        return column

    def _with_nothing(self, data: pa.Array | None) -> pa.Array:
        """The data, and the JSON null in changes that have no payload."""
        import pyarrow as pa
        import pyarrow.compute as pc

        data = pa.nulls(self._part.num_rows, pa.string()) if data is None else data
        binary = self._column("binary")
        bare = pc.and_(pa.array(self._targeted), data.is_null())
        if binary is not None:
            bare = pc.and_(bare, binary.is_null())
        return pc.if_else(bare, pa.scalar("null", data.type), data)

    def _changes(self) -> dict[str, pa.Array]:
        """The further arguments, if a row has any of them."""
        columns = {f"{name}s": self._column(name) for name in CHANGE_COLUMNS}
        return {name: column for name, column in columns.items() if column is not None}

    def _headers(self) -> pa.Array | None:
        import pyarrow as pa

        column = self._column("headers")
        if column is None:
            return None
        texts = [_object(entries) if entries else None for entries in column.to_pylist(maps_as_pydicts=None)]
        for row, text in enumerate(texts):
            if text is not None and len(text) > CHUNK_BYTES:
                self._note(row, f"headers is longer than {CHUNK_BYTES} bytes")
        return pa.array(texts, pa.string())

    def _ttls(self) -> pa.Array | None:
        import pyarrow as pa

        column = self._column("ttl")
        return None if column is None else column.cast(pa.float64())


_TYPES: Final = {
    "names": "string",
    "channel": "int32",
    "types": "string",
    "keys": "string",
    "data": "string",
    "binary": "binary",
    "headers": "string",
    "ttls": "double",
}
"""The array arguments of `gapless.spark_stage`, in order, with their element types."""
_CHANGE_TYPES: Final = {
    "targets": "int64",
    "actions": "string",
    "throughs": "int64",
    "annotations": "string",
    "modes": "string",
    "removes": "bool",
}
"""The further ones of `gapless.spark_stage_changes`."""


def _listed(alias: str, column: pa.Array | None) -> pa.Array:
    """A column as one array value for Postgres; null if the whole column is null."""
    import pyarrow as pa

    kind = pa.type_for_alias(alias)
    if column is None:
        return pa.array([None], pa.list_(kind))
    return pa.ListArray.from_arrays(pa.array([0, len(column)], pa.int32()), column.cast(kind))
