"""From rows to arguments: what is refused, and how the bad row is named."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from gapless_spark.columns import CHANGE_COLUMNS
from gapless_spark.errors import BadOption
from gapless_spark.sink_errors import BadRow
from gapless_spark.sink_rows import CHUNK_BYTES, CHUNK_ROWS, Chunk, SinkColumns, sink_columns
from pyspark.sql import types

ALL = "channel string, type string, key string, data string, binary binary, headers texts, ttl double"
CHANGES = "target long, action string, through long, annotation string, mode string, remove boolean"
ARROW = pa.schema(
    [
        ("channel", pa.string()),
        ("type", pa.string()),
        ("key", pa.string()),
        ("data", pa.string()),
        ("binary", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("ttl", pa.float64()),
        ("target", pa.int32()),
        ("action", pa.string()),
        ("through", pa.int64()),
        ("annotation", pa.string()),
        ("mode", pa.string()),
        ("remove", pa.bool_()),
    ]
)
GOOD: dict[str, Any] = {"channel": "a", "data": "1"}


KINDS: dict[str, types.DataType] = {
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "int": types.IntegerType(),
    "long": types.LongType(),
    "double": types.DoubleType(),
    "boolean": types.BooleanType(),
    "timestamp": types.TimestampType(),
    "variant": types.VariantType(),
    "void": types.NullType(),
    "struct": types.StructType([types.StructField("a", types.IntegerType())]),
    "counts": types.MapType(types.StringType(), types.IntegerType()),
    "texts": types.MapType(types.StringType(), types.StringType()),
}


def columns(fields: str = ALL, channel: str | None = None) -> SinkColumns:
    """Of a DataFrame with these fields: names and kinds."""
    named = [field.split() for field in fields.split(", ")]
    return sink_columns(types.StructType([types.StructField(n, KINDS[k]) for n, k in named]), channel)


def chunks(rows: list[dict[str, Any]], size: int = 10_000) -> list[Chunk]:
    batches = pa.Table.from_pylist(rows, ARROW).to_batches(size)
    return list(columns(f"{ALL}, {CHANGES}").chunks(iter(batches), "partition 3"))


@pytest.mark.parametrize(
    ("fields", "channel", "said"),
    [
        ("data string", None, "channel: is missing"),
        ("data string", "a b", "channel: 'a b' is no channel's name"),
        ("channel string", None, "data: there is no column data"),
        ("data struct", "a", "to_json"),
        ("data counts", "a", "to_json"),
        ("data variant", "a", "to_json"),
        ("data int", "a", "cast(data as string)"),
        ("channel int, data string", None, "channel"),
        ("data string, key long", "a", "cast(key as string)"),
        ("data string, headers counts", "a", "its values must be strings"),
        ("data string, headers string", "a", "map<string,string>"),
        ("data string, ttl string", "a", "seconds"),
        ("binary string", "a", "binary"),
        ("data string, target string", "a", "'target' is string: it must be a whole number"),
        ("data string, through double", "a", "'through' is double: it must be a whole number"),
        ("data string, remove int", "a", "'remove' is int: it must be boolean"),
        ("data string, mode int", "a", "'mode' is int: it must be a string"),
        ("data string, deliver_at timestamp", "a", "'deliver_at': the sink does not know it"),
    ],
)
def test_columns_that_do_not_fit(fields: str, channel: str | None, said: str) -> None:
    with pytest.raises(BadOption) as caught:
        columns(fields, channel)
    assert said in str(caught.value)


def test_a_change_needs_no_column_of_payloads() -> None:
    assert columns("channel string, target int, action string").changes == {"target", "action"}
    assert columns().changes == set()


def test_what_was_read_may_be_written_back() -> None:
    read = "id long, channel string, seq long, type string, key string, data string"
    found = columns(f"{read}, headers texts, sender void, created_at timestamp")
    assert found.present == {"channel", "type", "key", "data", "headers"}
    found = columns(f"{read}, {CHANGES}")
    assert found.changes == set(CHANGE_COLUMNS)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"channel": None}, "channel is null"),
        ({"channel": "a\0"}, "channel holds a zero character"),
        ({"type": "a\0"}, "type holds a zero character"),
        ({"key": "a\0"}, "key holds a zero character"),
        ({"data": '"\0"'}, "data holds a zero character"),
        ({"data": None}, "data is null"),
        ({"binary": b"1"}, "both data and binary"),
        ({"binary": b"1", "target": 1}, "both data and binary"),
        ({"data": None, "action": "delete"}, "data is null"),
        ({"annotation": "a\0"}, "annotation holds a zero character"),
        ({"action": "x" * (CHUNK_BYTES + 1)}, "is longer than 4194304 bytes"),
        ({"data": '"' + "x" * CHUNK_BYTES + '"'}, "is longer than 4194304 bytes"),
        ({"data": None, "binary": b"x" * (CHUNK_BYTES + 1)}, "is longer than 4194304 bytes"),
        ({"key": "x" * (CHUNK_BYTES + 1)}, "is longer than 4194304 bytes"),
        ({"headers": {"a": "x" * CHUNK_BYTES}}, "headers is longer than 4194304 bytes"),
    ],
)
def test_the_first_row_that_cannot_be_sent_is_named(row: dict[str, Any], said: str) -> None:
    bad = {**GOOD, **row}
    later: dict[str, Any] = {"channel": "a"}
    with pytest.raises(BadRow) as caught:
        chunks([GOOD] * 6_001 + [bad, later], size=4_000)
    told = str(caught.value)
    assert told.startswith("row 6001 of partition 3 (counted from 0; ")
    assert said in told
    # By these the row can be found in the table it came from.
    for name in ("channel", "key"):
        if (value := bad.get(name)) is not None:
            assert f"{name} {value[:100]!r}" in told


def test_rows_become_arrays() -> None:
    rows: list[dict[str, Any]] = [
        {"channel": "b", "data": '{\r\n "a": 1}', "type": None, "key": "ü"},
        {"channel": "a", "binary": b"\x00\xff", "type": "t", "headers": {"x": 'q"'}, "ttl": 1.5},
        {"channel": "b", "data": "2", "headers": {}},
        {"channel": "b", "data": "3", "headers": [("a", "1"), ("a", None)]},
    ]
    (chunk,) = chunks(rows)
    assert {name: values.to_pylist()[0] for name, values in chunk.arguments.items()} == {
        "names": ["b", "a"],
        "channel": [1, 2, 1, 1],
        "types": ["message", "t", "message", "message"],
        "keys": ["ü", None, None, None],
        "data": ['{\t\t "a": 1}', None, "2", "3"],
        "binary": [None, b"\x00\xff", None, None],
        "headers": [None, '{"x":"q\\""}', None, '{"a":"1","a":null}'],
        "ttls": [None, 1.5, None, None],
    }
    assert (chunk.rows, chunk.changes) == (4, 0)


def test_changes_add_arguments() -> None:
    rows: list[dict[str, Any]] = [
        {"channel": "a", "data": "1", "target": 7, "action": "update"},
        {"channel": "a", "data": "2"},
        {"channel": "a", "target": 8, "action": "delete", "through": 2**40},
        {"channel": "a", "binary": b"1", "target": 9, "action": "reply"},
    ]
    (chunk,) = chunks(rows)
    assert chunk.changes == 3
    assert {name: values.to_pylist()[0] for name, values in chunk.arguments.items()} == {
        "names": ["a"],
        "channel": [1, 1, 1, 1],
        "types": None,
        "keys": None,
        "data": ["1", "2", "null", None],
        "binary": [None, None, None, b"1"],
        "headers": None,
        "ttls": None,
        "targets": [7, None, 8, 9],
        "actions": ["update", None, "delete", "reply"],
        "throughs": [None, None, 2**40, None],
        "annotations": None,
        "modes": None,
        "removes": None,
    }
    (chunk,) = chunks([{"channel": "a", "target": 7, "action": "annotate", "remove": True}])
    assert chunk.arguments["data"].to_pylist() == [["null"]]
    assert chunk.arguments["removes"].to_pylist() == [[True]]


def test_a_chunk_is_bounded_in_rows_and_bytes() -> None:
    many = chunks([GOOD] * (2 * CHUNK_ROWS + 1), size=20_000)
    assert [chunk.rows for chunk in many] == [CHUNK_ROWS, CHUNK_ROWS, 1]
    large = {"channel": "a", "data": '"' + "x" * 900_000 + '"'}
    assert all(chunk.size <= CHUNK_BYTES for chunk in chunks([large] * 9))
    assert [chunk.rows for chunk in chunks([large] * 9)] == [4, 4, 1]
    assert chunks([]) == []
