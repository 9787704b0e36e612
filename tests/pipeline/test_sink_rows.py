"""From rows to arguments: what is refused, and how the bad row is named."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from gapless_spark.errors import BadOption
from gapless_spark.sink_errors import BadRow
from gapless_spark.sink_rows import CHUNK_BYTES, CHUNK_ROWS, Chunk, SinkColumns, sink_columns
from pyspark.sql import types

ALL = "channel string, type string, key string, data string, binary binary, headers texts, ttl double"
ARROW = pa.schema(
    [
        ("channel", pa.string()),
        ("type", pa.string()),
        ("key", pa.string()),
        ("data", pa.string()),
        ("binary", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("ttl", pa.float64()),
    ]
)
GOOD: dict[str, Any] = {"channel": "a", "data": "1"}


KINDS: dict[str, types.DataType] = {
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "int": types.IntegerType(),
    "long": types.LongType(),
    "double": types.DoubleType(),
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
    return list(columns().chunks(iter(batches), "partition 3"))


@pytest.mark.parametrize(
    ("fields", "channel", "said"),
    [
        ("data string", None, "channel: is missing"),
        ("data string", "a b", "channel: 'a b' must be tokens"),
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
        ("data string, deliver_at timestamp", "a", "'deliver_at': the sink does not know it"),
    ],
)
def test_columns_that_do_not_fit(fields: str, channel: str | None, said: str) -> None:
    with pytest.raises(BadOption) as caught:
        columns(fields, channel)
    assert said in str(caught.value)


def test_what_was_read_may_be_written_back() -> None:
    read = "id long, channel string, seq long, type string, key string, data string"
    found = columns(f"{read}, headers texts, sender void, created_at timestamp")
    assert found.present == {"channel", "type", "key", "data", "headers"}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"data": "1"}, "channel is null"),
        ({"channel": "a..b"}, "channel must be tokens"),
        ({"channel": ""}, "channel is empty"),
        ({"channel": "a" * 256}, "channel is longer than 255"),
        ({"type": ""}, "type is empty"),
        ({"type": "t" * 129}, "type is longer than 128"),
        ({"key": "k" * 256}, "key is longer than 255"),
        ({"key": "a\nb"}, "key holds control characters"),
        ({"data": None}, "data is null"),
        ({"data": "hello"}, "data is no JSON"),
        ({"data": '"' + "x" * 2**20 + '"'}, "the payload is longer than 1048576 bytes"),
        ({"binary": b"1"}, "both data and binary"),
        ({"data": None, "binary": b"x" * (2**20 + 1)}, "longer than 1048576 bytes"),
        ({"headers": {"a": None}}, "headers has no value for 'a'"),
        ({"headers": {"": "a"}}, "an empty name"),
        ({"headers": {"a": "x\0"}}, "headers holds control characters"),
        ({"headers": {str(n): "" for n in range(65)}}, "more than 64 entries"),
        ({"headers": {"a": "ü" * 4096}}, "more than 8192 bytes"),
        ({"headers": {"gapless-journey": "x" * 2**20}}, "more than 1048576 bytes for gapless-journey"),
        ({"ttl": 0.0}, "ttl must be above 0"),
        ({"ttl": float("nan")}, "ttl must be above 0"),
        ({"ttl": 4e8}, "ttl must be above 0"),
    ],
)
def test_the_first_bad_row_is_named(row: dict[str, Any], said: str) -> None:
    bad = {**(GOOD if "channel" not in row and "data" not in row else {}), **row}
    if "channel" in row:
        bad["data"] = "1"
    elif said != "channel is null":
        bad["channel"] = "a"
    later: dict[str, Any] = {"channel": "a", "data": "later and worse"}
    rows = [GOOD] * 6_001 + [bad, later]
    with pytest.raises(BadRow) as caught:
        chunks(rows, size=4_000)
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
    ]
    (chunk,) = chunks(rows)
    assert {name: values.to_pylist()[0] for name, values in chunk.arguments.items()} == {
        "names": ["b", "a"],
        "channel": [1, 2, 1],
        "types": ["message", "t", "message"],
        "keys": ["ü", None, None],
        "data": ['{   "a": 1}', None, "2"],
        "binary": [None, b"\x00\xff", None],
        "headers": [None, '{"x":"q\\""}', None],
        "ttls": [None, 1.5, None],
    }
    assert chunk.rows == 3


def test_a_chunk_is_bounded_in_rows_and_bytes() -> None:
    many = chunks([GOOD] * (2 * CHUNK_ROWS + 1), size=20_000)
    assert [chunk.rows for chunk in many] == [CHUNK_ROWS, CHUNK_ROWS, 1]
    large = {"channel": "a", "data": '"' + "x" * 900_000 + '"'}
    assert all(chunk.size <= CHUNK_BYTES for chunk in chunks([large] * 9))
    assert [chunk.rows for chunk in chunks([large] * 9)] == [4, 4, 1]
    assert chunks([]) == []
