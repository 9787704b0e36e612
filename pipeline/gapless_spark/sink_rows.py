"""Checks rows of a DataFrame, and turns them into arguments of `gapless.spark_stage`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gapless_spark.errors import BadOption
from gapless_spark.sink_errors import BadRow
from gapless_spark.sink_json import why_unfit

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

MAX_MESSAGE_BYTES: Final = 1024 * 1024
MAX_HEADERS: Final = 64
MAX_HEADERS_BYTES: Final = 8 * 1024
JOURNEY_HEADER: Final = "gapless-journey"
"""A header of the service, which does not count towards the limits of headers."""
MAX_JOURNEY_BYTES: Final = 1024 * 1024
MAX_KEY_CHARACTERS: Final = 255
MAX_TYPE_CHARACTERS: Final = 128
MAX_TTL_S: Final = 10 * 365 * 24 * 3600

CHUNK_ROWS: Final = 5_000
CHUNK_BYTES: Final = 4 * 1024 * 1024
"""The limits of one call, apart from its first message, which may be 1 MiB."""

GIVEN: Final = frozenset({"id", "seq", "sender", "created_at", "expires_at"})
"""Columns that the service sets. They are ignored, so that rows of a read can be written."""
TAKEN: Final = ("channel", "type", "key", "data", "binary", "headers", "ttl")

_NAME: Final = re.compile(r"[A-Za-z0-9_~:@-]+(?:\.[A-Za-z0-9_~:@-]+)*")
_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some checked rows: their number, the bytes of their payloads, and their channels. `arguments` has one
    row with the array arguments of `gapless.spark_stage`, in order."""

    rows: int
    size: int
    names: list[str]
    arguments: dict[str, pa.Array]


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The columns of the DataFrame that make the messages. `channel` is the channel from the option, for all
    rows; then the column of that name is not read."""

    present: frozenset[str]
    channel: str | None

    def chunks(self, batches: Iterator[pa.RecordBatch], place: str) -> Iterator[Chunk]:
        """The rows of a partition, in order. Raises `BadRow`, which names the first bad row, counted from 0
        in the partition, and `place`."""
        start = 0
        for batch in batches:
            for part in _parts(batch):
                yield _Checked(self, part, start, place).chunk()
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
    if channel is not None and (wrong := _bad_name(channel)):
        raise BadOption(f"channel: {channel[:300]!r} {wrong}")
    if not present & {"data", "binary"}:
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
}


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in slices within the limits of one call."""
    sizes = _sizes(batch)
    start, size = 0, 0
    for row, bytes_of_row in enumerate(sizes):
        if row > start and (row - start >= CHUNK_ROWS or size + bytes_of_row > CHUNK_BYTES):
            yield batch.slice(start, row - start)
            start, size = row, 0
        size += bytes_of_row
    if start < batch.num_rows:
        yield batch.slice(start)


def _sizes(batch: pa.RecordBatch) -> list[int]:
    import pyarrow.compute as pc

    sizes = [0] * batch.num_rows
    for name in {"data", "binary"} & set(batch.schema.names):
        column = batch.column(name)
        if column.type != "null":
            found = pc.binary_length(column).to_pylist()
            sizes = [size + (more or 0) for size, more in zip(sizes, found, strict=True)]
    return sizes


def _bad_name(name: str) -> str | None:
    if not name:
        return "is empty"
    if len(name) > 255:
        return "is longer than 255 characters"
    return None if _NAME.fullmatch(name) else "must be tokens of letters, digits and _ ~ : @ - joined by dots"


def _bad_text(text: str, limit: int) -> str | None:
    if len(text) > limit:
        return f"is longer than {limit} characters"
    return "holds control characters" if not text.isprintable() and _CONTROL.search(text) else None


def _bad_type(text: str) -> str | None:
    return _bad_text(text, MAX_TYPE_CHARACTERS) if text else "is empty"


def _bad_key(text: str) -> str | None:
    return _bad_text(text, MAX_KEY_CHARACTERS)


def _bad_ttl(ttl: float) -> str | None:
    return None if 0 < ttl <= MAX_TTL_S else "must be above 0 and at most ten years, in seconds"


def _bad_headers(entries: list[tuple[str, str | None]]) -> str | None:
    if sum(name != JOURNEY_HEADER for name, _ in entries) > MAX_HEADERS:
        return f"has more than {MAX_HEADERS} entries"
    size = own = 0
    for name, value in entries:
        if value is None:
            return f"has no value for {name[:100]!r}"
        if not name:
            return "has an entry with an empty name"
        if not (name + value).isprintable() and _CONTROL.search(name + value):
            return "holds control characters"
        bytes_ = len(name.encode()) + len(value.encode())
        size += bytes_
        own += bytes_ if name == JOURNEY_HEADER else 0
    if len(dict(entries)) != len(entries):
        return "has two entries of one name"
    if own > MAX_JOURNEY_BYTES:
        return f"takes more than {MAX_JOURNEY_BYTES} bytes for {JOURNEY_HEADER}"
    return f"takes more than {MAX_HEADERS_BYTES} bytes" if size - own > MAX_HEADERS_BYTES else None


class _Checked:
    """Checks one slice and makes a chunk of it. All columns are checked before the first bad row is
    reported."""

    def __init__(self, columns: SinkColumns, part: pa.RecordBatch, start: int, place: str) -> None:
        self._columns = columns
        self._part = part
        self._start = start
        self._place = place
        self._bad: tuple[int, str] | None = None

    def chunk(self) -> Chunk:
        arguments = {
            **self._channels(),
            "types": self._types(),
            "keys": self._texts("key", _bad_key),
            "data": self._data(),
            "binary": self._binary(),
            "headers": self._headers(),
            "ttls": self._ttls(),
        }
        self._check_payloads()
        if self._bad is not None:
            row, why = self._bad
            raise BadRow(
                f"row {self._start + row} of {self._place} (counted from 0; {self._whose(row)}): {why}."
                " Nothing of this batch is stored"
            )
        listed = {name: _listed(name, arguments[name]) for name in _TYPES}
        names = arguments["names"].to_pylist()
        return Chunk(self._part.num_rows, sum(_sizes(self._part)), names, listed)

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

    def _check(self, name: str, values: list[Any], why: Callable[[Any], str | None]) -> None:
        for row, value in enumerate(values):
            if value is not None and (wrong := why(value)) is not None:
                self._note(row, f"{name} {wrong}")
                return

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
        if any(_bad_name(name) for name in encoded.dictionary.to_pylist()):
            self._check("channel", column.to_pylist(), _bad_name)
        return {"names": encoded.dictionary, "channel": pc.add(encoded.indices.cast(pa.int32()), 1)}

    def _types(self) -> pa.Array | None:
        import pyarrow.compute as pc

        column = self._column("type")
        if column is None:
            return None
        if any(name is not None and _bad_type(name) for name in pc.unique(column).to_pylist()):
            self._check("type", column.to_pylist(), _bad_type)
        return pc.fill_null(column, "message")

    def _texts(self, name: str, why: Callable[[str], str | None]) -> pa.Array | None:
        column = self._column(name)
        if column is not None:
            self._check(name, column.to_pylist(), why)
        return column

    def _data(self) -> pa.Array | None:
        import pyarrow.compute as pc

        column = self._texts("data", why_unfit)
        if column is None:
            return None
        # Messages are written on one line. Raw line breaks in JSON are only between tokens.
        for line_break in ("\n", "\r"):
            if pc.any(pc.match_substring(column, line_break)).as_py():
                column = pc.replace_substring(column, line_break, " ")
        return column

    def _binary(self) -> pa.Array | None:
        return self._column("binary")

    def _check_payloads(self) -> None:
        """Check that each row has exactly one payload, of at most 1 MiB."""
        data, binary = self._column("data"), self._column("binary")
        rows = self._part.num_rows
        missing = [True] * rows if data is None else data.is_null().to_pylist()
        without = [True] * rows if binary is None else binary.is_null().to_pylist()
        for row, (no_data, no_binary, size) in enumerate(
            zip(missing, without, _sizes(self._part), strict=True)
        ):
            if no_data and no_binary:
                self._note(row, "data is null; the JSON text 'null' is data")
            elif not no_data and not no_binary:
                self._note(row, "has both data and binary")
            elif size > MAX_MESSAGE_BYTES:
                self._note(row, f"the payload is longer than {MAX_MESSAGE_BYTES} bytes")
            else:
                continue
            return

    def _headers(self) -> pa.Array | None:
        import pyarrow as pa

        column = self._column("headers")
        if column is None:
            return None
        values = column.to_pylist(maps_as_pydicts=None)
        self._check("headers", values, _bad_headers)
        texts = [
            json.dumps(dict(v), ensure_ascii=False, separators=(",", ":")) if v else None for v in values
        ]
        return pa.array(texts, pa.string())

    def _ttls(self) -> pa.Array | None:
        import pyarrow as pa

        column = self._column("ttl")
        if column is None:
            return None
        column = column.cast(pa.float64())
        self._check("ttl", column.to_pylist(), _bad_ttl)
        return column


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


def _listed(name: str, column: pa.Array | None) -> pa.Array:
    """A column as one array value for Postgres; null if the whole column is null."""
    import pyarrow as pa

    kind = pa.type_for_alias(_TYPES[name])
    if column is None:
        return pa.array([None], pa.list_(kind))
    return pa.ListArray.from_arrays(pa.array([0, len(column)], pa.int32()), column.cast(kind))
