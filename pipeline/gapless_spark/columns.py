"""The columns of a message in SQL, in Arrow and in Spark.

Headers are JSON in Postgres and a map in Arrow and Spark. They are read as text and parsed here. If few
messages have headers, that is cheaper than two arrays for every row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

COLUMNS = ("id", "channel", "seq", "type", "key", "data", "headers", "sender", "created_at")
"""The columns of every read, in this order. `data` is the JSON text as it was stored; null for binary
data."""

BINARY = "binary"
"""The optional column with the bytes of binary data; null for JSON."""

CHANGE_COLUMNS = ("target", "action", "through", "annotation", "mode", "remove")
"""The optional columns that say which message a message changes, and how; null in one that changes none."""

_SQL = {
    "id": "m.id",
    "channel": "c.name::text as channel",
    "seq": "m.seq",
    "type": "m.type",
    "key": "m.key",
    "data": "m.data::text as data",
    "headers": "m.headers::text as headers",
    "sender": "m.sender",
    "created_at": "m.created_at",
    BINARY: 'm."binary"',
    "target": "(m.change ->> 'target')::bigint as target",
    "action": "m.change ->> 'action' as action",
    "through": "(m.change ->> 'through')::bigint as through",
    "annotation": "m.change ->> 'annotation' as annotation",
    "mode": "m.change ->> 'mode' as mode",
    "remove": "(m.change ->> 'remove')::boolean as remove",
}
_DDL = {
    "id": "bigint",
    "channel": "string",
    "seq": "bigint",
    "type": "string",
    "key": "string",
    "data": "string",
    "headers": "map<string,string>",
    "sender": "string",
    "created_at": "timestamp",
    BINARY: "binary",
    "target": "bigint",
    "action": "string",
    "through": "bigint",
    "annotation": "string",
    "mode": "string",
    "remove": "boolean",
}


def select_list(columns: Sequence[str], *, named: bool = True) -> str:
    """The select list of these columns; `m` are the messages, `c` their channels. Without `named`, it has the
    channels' numbers and needs no `c`. `to_batches` turns the answer into the columns."""
    known = _SQL if named else {**_SQL, "channel": "m.channel_id as channel"}
    return ", ".join(known[column] for column in columns)


def all_columns(binary: bool = False, changes: bool = False) -> tuple[str, ...]:
    """The columns of the source, with `binary` and those of changes if asked."""
    return (*COLUMNS, *([BINARY] if binary else []), *(CHANGE_COLUMNS if changes else ()))


def ddl(columns: Sequence[str] = COLUMNS) -> str:
    """The columns in Spark's DDL."""
    return ", ".join(f"`{column}` {_DDL[column]}" for column in columns)


def spark_schema(columns: Sequence[str] = COLUMNS) -> StructType:
    """The columns as Spark's schema; `data` as text."""
    from pyspark.sql.types import (
        BinaryType,
        BooleanType,
        DataType,
        LongType,
        MapType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    types: dict[str, DataType] = {
        "bigint": LongType(),
        "string": StringType(),
        "timestamp": TimestampType(),
        "binary": BinaryType(),
        "boolean": BooleanType(),
        "map<string,string>": MapType(StringType(), StringType()),
    }
    return StructType([StructField(column, types[_DDL[column]]) for column in columns])


def arrow_schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """The columns as Arrow's schema, times in microseconds UTC; `data` as text."""
    import pyarrow as pa

    types = {
        "bigint": pa.int64(),
        "string": pa.string(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "binary": pa.binary(),
        "boolean": pa.bool_(),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }
    return pa.schema([pa.field(column, types[_DDL[column]]) for column in columns])


def to_batches(
    fetched: Iterable[pa.RecordBatch], columns: Sequence[str], names: dict[int, str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Batches in the schema `arrow_schema(columns)` from Postgres' answer to `select_list(columns)`. `names`
    has the channels' names by number, if the answer has numbers."""
    import pyarrow as pa

    schema = arrow_schema(columns)
    numbers = None if names is None else (pa.array(names.keys(), pa.int64()), pa.array(names.values()))
    for batch in fetched:
        arrays = []
        for field in schema:
            if field.name == "headers":
                arrays.append(_map(batch.column(field.name), field.type))
            elif field.name == "channel" and numbers is not None:
                arrays.append(_named(batch.column(field.name), *numbers))
            else:
                arrays.append(batch.column(field.name))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _named(channels: pa.Int64Array, numbers: pa.Int64Array, names: pa.StringArray) -> pa.StringArray:
    """The names of channels by number. Every channel must have one."""
    import pyarrow.compute as pc

    found = pc.index_in(channels, numbers)
    assert found.null_count == 0, "a message of no channel"
    return names.take(found)


def _map(texts: pa.StringArray, type_: pa.DataType) -> pa.Array:
    """Maps from texts of JSON objects of strings, in the same order; null for null."""
    import pyarrow as pa

    if texts.null_count == len(texts):
        return pa.nulls(len(texts), type_)
    names: list[str] = []
    values: list[str] = []
    offsets = [0]
    for text in texts.to_pylist():
        if text is not None:
            headers: dict[str, str] = json.loads(text)
            names += headers.keys()
            values += headers.values()
        offsets.append(len(names))
    made = pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()),
        pa.array(names, pa.string()),
        pa.array(values, pa.string()),
        mask=texts.is_null() if texts.null_count else None,
    )
    assert isinstance(made, pa.MapArray)
    return made
