"""What the option `payload` makes of a value is what Spark makes of it, in `gapless_spark.parsed`."""

from __future__ import annotations

import re
from typing import Any

import gapless_spark
import pyarrow as pa
import pytest
from gapless_spark.columns import COLUMNS, arrow_schema, spark_schema
from gapless_spark.payload import with_payload
from pyspark.sql import Column, Row, SparkSession, functions
from pyspark.sql.types import DataType, StructType

pytestmark = pytest.mark.spark

ZONE = "Europe/Berlin"
VALUES = r"""
0
-0
1
-1
7
127
128
-129
200
255
256
32767
32768
2147483647
2147483648
-2147483648
9223372036854775807
9223372036854775808
-9223372036854775809
123456789012345678901234567890
99999999999999999999999999999999999999
0.0
-0.0
1.0
1.5
0.125
0.135
-0.125
2.675
99999999.994
99999999.995
12345678901.5
1e3
1E2
1e-3
1e30
1e38
1e308
1e400
-1e400
1e-400
12345678901234567890.123456789012345678
0.0000000000000000005
0.00000000000000000049
true
false
null
""
" "
"x"
"5"
" 5 "
"12.50"
"1,234.5"
"1e3"
"NaN"
"Infinity"
"-INF"
"+INF"
"+Infinity"
"-Infinity"
"true"
"aGVsbG8="
"aGVsbG8"
"aGVs bG8="
"a-_b"
"2026-11-20"
"2026-11"
"2026"
"2026-1-2"
" 2026-11-20 "
"2026-11-20T12:00:00"
"2026-11-20 12:00:00.123456789"
"2026-11-20T12:00:00.000001+01:00"
"2026-11-20T12:00:00Z"
"2026-11-20 12:00"
"2026-11-20 12"
"2026-11-20T1:2:3"
"2026-11-20 12:00:00 Europe/Paris"
"2026-11-20 12:00:00 UTC"
"2026-11-20T12:00:00+0100"
"2026-11-20T12:00:00+01"
"2026-11-20T12:00:00+1:00"
"2026-11-20T12:00:00,5"
"20261120"
"2026-W47-5"
"2026-02-30"
"0001-01-01"
"1000-01-01"
"1800-01-01T00:00:00"
"1582-10-10"
"9999-12-31T23:59:59.999999Z"
"10000-01-01"
"+10000-01-01"
"-0001-01-01"
"12:30"
"T12:30"
"24:00"
"2026-11-20T24:00:00"
"2026-03-29T02:30:00"
"2026-10-25T02:30:00"
"epoch"
"1970-01-01T00:00:00.5Z"
"2026-11-20abc"
"2026-11-20Tabc"
"2026-11-20T12:00:00 +01:00"
"2026-11-20T12:00:00GMT+1"
"2026-11-20T12:00:00 PST"
"é\u0000\ud83d\ude00"
"a\"b\/\n"
{}
{"a": 1}
{"a":1.50, "b": [1E2, "é\u00e9", null, true]}
[]
[1, 2]
[ 1.0 , "x" ]
"2026-11-20 12:00+01:00"
"2026-11-20 12:00Z"
"2026-11-20 12Z"
"2026-11-20T12:00:00."
"2026-11-20T"
"2026-11-20T12:00:00.1234567890123Z"
"2026-11-20T12:00:00 EST"
"2026-11-20T12:00:00UTC+02:00"
"2026-11-20T12:00:00z"
"2026-11-20T12:00:00+19:00"
"2026-11-20T12:00:00+01:00:30"
"2026-11-20t12:00:00"
"-200000"
"+5"
"5."
".5"
"\u0663"
"1_0"
"0x1F"
"10000-01-01T00:00:00"
"1234567-01-01"
"294248-01-01"
"1e3f"
"2026-11-20T12:00:00+01:5"
"inf"
"nan"
"INF"
"9999999999"
"aGVsbG8=aGVsbG8="
"\naGVs"
"20261"
""".strip("\n").split("\n")
NESTED = [
    '{"a": "x", "b": true, "l": [1, "y"], "m": {"k": 1, "z": "q"}, "s": {"a": 200, "c": "x"}}',
    '{"a": 200, "l": [200, 1], "m": {"k": 200}, "s": {"a": 1, "c": 2, "more": {"c": 3}}, "b": false}',
    '{"m": {"z": "q", "b": true, "a": 5}, "l": ["y", {"b": true}, [7]], "b": false}',
    '{"r": [{"c": "x"}, {"c": 1}]}',
    '{"r": [{"c": 1}, 5, {"c": 2}], "b": true}',
    '{"r": [{"c": 1}, null], "l": [null, 3], "m": {"k": null}, "s": null}',
    '{"s": [1], "l": {"b": true}, "m": [{"b": true}], "a": 1}',
    '{"a": 1, "a": 2, "m": {"k": 1, "k": 2}}',
    '[{"a": 1}]',
    "5",
]
TYPES = [
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "decimal(10,2)",
    "decimal(38,18)",
    "decimal(38,0)",
    "decimal(5,5)",
    "string",
    "boolean",
    "date",
    "timestamp",
    "timestamp_ntz",
    "array<int>",
    "map<string,int>",
    "struct<a: int>",
    "array<string>",
]
FIELDS = (
    "a tinyint, b boolean, l array<tinyint>, m map<string,tinyint>, s struct<a: tinyint, c: int>, "
    "r array<struct<c: int>>"
)


def by_spark(spark: SparkSession, texts: list[str], kind: str, shown: dict[str, str]) -> list[list[Any]]:
    """What `parsed` makes of each text: for each row, the values of these parts of it, by their types."""
    frame = gapless_spark.parsed(spark.createDataFrame(list(enumerate(texts)), "i int, v string"), kind, "v")
    columns = [
        _shown(functions.col(path), part).alias(f"p{n}") for n, (path, part) in enumerate(shown.items())
    ]
    return [
        [_plain(_of_spark(value)) for value in row] for row in frame.orderBy("i").select(*columns).collect()
    ]


def _shown(column: Column, kind: str) -> Column:
    """Python has no dates before the year 1 and after 9999."""
    match kind:
        case "date":
            return functions.unix_date(column)
        case "timestamp":
            return functions.unix_micros(column)
        case "timestamp_ntz":
            day = functions.unix_date(column.cast("date")).cast("bigint")
            minutes = (day * 24 + functions.hour(column)) * 60 + functions.minute(column)
            micros = functions.date_part(functions.lit("SECOND"), column) * 1_000_000
            return minutes * 60_000_000 + micros.cast("bigint")
        case _:
            return column


def by_option(texts: list[str], kind: DataType) -> list[Any]:
    """What the option `payload` makes of each text."""
    schema = StructType(list(spark_schema().fields))
    schema.fields[COLUMNS.index("data")].dataType = kind
    columns = [
        pa.array(texts, field.type) if field.name == "data" else pa.nulls(len(texts), field.type)
        for field in arrow_schema()
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=arrow_schema())
    (made,) = with_payload(iter([batch]), schema, ZONE)
    data = made.column(COLUMNS.index("data"))
    if not _is_of_many(kind):
        return [_plain(value) for value in data.to_pylist()]
    return [
        list(row) for row in zip(*(_numbers(data.field(n)) for n in range(data.type.num_fields)), strict=True)
    ]


def _is_of_many(kind: DataType) -> bool:
    """Whether it has a field for each type."""
    return isinstance(kind, StructType) and kind.names[0] == "c0"


def _numbers(column: Any) -> list[Any]:
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return [_plain(value) for value in column.to_pylist()]


def _of_spark(value: Any) -> Any:
    """A struct as a dict and a map as a list of pairs, as Arrow gives them."""
    match value:
        case Row():
            return {name: _of_spark(member) for name, member in value.asDict().items()}
        case dict():
            return [(name, _of_spark(member)) for name, member in value.items()]
        case list():
            return [_of_spark(element) for element in value]
        case _:
            return value


def _plain(value: Any) -> Any:
    """The same for a value of Spark and one of Arrow; a float by its spelling, for NaN and for -0.0."""
    match value:
        case dict():
            return {name: _plain(member) for name, member in value.items()}
        case tuple():
            return tuple(map(_plain, value))
        case list():
            return [_plain(element) for element in value]
        case bytearray():
            return bytes(value)
        case float():
            return repr(value)
        case _:
            return value


def type_of(spark: SparkSession, kind: str) -> DataType:
    return spark.createDataFrame([], f"v {kind}").schema["v"].dataType


@pytest.fixture
def abroad(spark: SparkSession) -> Any:
    """The session in a zone with summer time."""
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", ZONE)
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


def compare(spark: SparkSession, kinds: list[str]) -> list[str]:
    """Where the two differ. Each value is a field of each type."""
    names = [f"c{number}" for number in range(len(kinds))]
    fields = ", ".join(f"{name} {kind}" for name, kind in zip(names, kinds, strict=True))
    texts = ["{" + ",".join(f'"{name}":{value}' for name in names) + "}" for value in VALUES]
    whole = f"struct<{fields}>"
    shown = {f"v.{name}": kind for name, kind in zip(names, kinds, strict=True)}
    rows = zip(by_spark(spark, texts, whole, shown), by_option(texts, type_of(spark, whole)), strict=True)
    return [
        f"{value} as {kind}: {one!r} by Spark, {other!r} by the option"
        for value, (by, option) in zip(VALUES, rows, strict=True)
        for kind, one, other in zip(kinds, by, option, strict=True)
        if one != other and not _spelled_anew(kind, value)
    ]


def test_parts_become_the_same(abroad: SparkSession) -> None:
    kind = f"struct<{FIELDS}>"
    spark = [row[0] for row in by_spark(abroad, NESTED, kind, {"v": kind})]
    assert by_option(NESTED, type_of(abroad, kind)) == spark


def test_each_value_becomes_the_same_of_each_type(abroad: SparkSession) -> None:
    # Spark's parser loses its place in a text that ends within base64, and with it the fields around.
    differing = compare(abroad, TYPES) + compare(abroad, ["binary"])
    assert "\n".join(differing) == ""


def _spelled_anew(kind: str, text: str) -> bool:
    """Whether Spark writes a number of the text as a double, where the option keeps its spelling."""
    return "string" in kind and not text.startswith('"') and re.search(r"[.eE]\d|\d[eE]|-0", text) is not None
