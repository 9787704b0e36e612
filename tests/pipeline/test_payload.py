"""The forms `data` may take."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from gapless_spark.columns import COLUMNS, arrow_schema, spark_schema
from gapless_spark.errors import BadOption
from gapless_spark.payload import payload_type, with_payload
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
    VariantVal,
)


@pytest.mark.parametrize(
    ("option", "kind"),
    [
        ("STRING", "string"),
        ("variant", "variant"),
        ("a int, b string", "struct<a: int, b: string>"),
        ("`a b` bigint,c:decimal(10,2)", "struct<`a b`: bigint, c: decimal(10,2)>"),
        ("array<struct<a: int, b: map<string, double>>>", "array<struct<a: int, b: map<string,double>>>"),
        ("bigint", "bigint"),
        (StructType().add("a", LongType()).json(), "struct<a: bigint>"),
    ],
)
def test_a_type_is_written_as_spark_writes_it(option: str, kind: str) -> None:
    assert payload_type(option) == kind


@pytest.mark.parametrize(
    "option", ["", "a int b", "a", "struct<", "map<int,string>", "{}", "a interval", "a int,"]
)
def test_what_is_no_type_is_named(option: str) -> None:
    with pytest.raises(BadOption, match=r"^payload: "):
        payload_type(option)


def parse(kind: DataType, *texts: str | None) -> list[Any]:
    """What becomes of these payloads."""
    schema = StructType(list(spark_schema().fields))
    schema.fields[COLUMNS.index("data")].dataType = kind
    columns = [
        pa.array(texts, field.type) if field.name == "data" else pa.nulls(len(texts), field.type)
        for field in arrow_schema()
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=arrow_schema())
    (made,) = with_payload(iter([batch]), schema)
    values: list[Any] = made.column(COLUMNS.index("data")).to_pylist()
    return values


def test_numbers_are_exact() -> None:
    assert parse(DecimalType(20, 4), "12345678901234.5678", "1e3", "0.00001", "1" * 30, '"5"') == [
        Decimal("12345678901234.5678"),
        Decimal("1000.0000"),
        Decimal("0.0000"),
        None,
        Decimal("5.0000"),
    ]
    assert parse(DecimalType(38, 18), "12345678901.5") == [Decimal("12345678901.500000000000000000")]
    assert parse(LongType(), str(2**63 - 1), str(2**63), "1.0", "-7") == [2**63 - 1, None, None, -7]
    assert parse(ByteType(), "127", "128", "-128") == [127, None, -128]
    assert parse(DoubleType(), "1.5", "7", '"1.5"', "true") == [1.5, 7.0, None, None]


def test_text_keeps_the_spelling_of_what_is_inside() -> None:
    nested = '{"n": 1.50, "list": [1E2, "é\\u0000", null, true]}'
    assert parse(StringType(), nested) == [nested]
    struct = StructType().add("n", StringType()).add("o", StringType())
    assert parse(struct, json.dumps({"n": "text"}), '{"n": 1.50, "o": {"a": [1.0, "ä"]}}') == [
        {"n": "text", "o": None},
        {"n": "1.50", "o": '{"a":[1.0,"ä"]}'},
    ]


def test_what_does_not_fit_is_null_and_the_rest_stays() -> None:
    struct = StructType().add("a", LongType()).add("b", BooleanType()).add("l", ArrayType(LongType()))
    assert parse(struct, '{"a": "x", "b": true, "l": [1, "y"], "more": 1}', "[1]", "null", None, "{}") == [
        {"a": None, "b": True, "l": None},
        None,
        None,
        None,
        {"a": None, "b": None, "l": None},
    ]
    assert parse(MapType(StringType(), LongType()), '{"x": 1, "y": null}') == [[("x", 1), ("y", None)]]


def test_json_beyond_what_python_takes_is_null() -> None:
    deep, long = "[" * 5000 + "]" * 5000, "1" * 5000
    struct = StructType().add("a", LongType()).add("b", StringType())
    assert parse(struct, f'{{"a": {long}, "b": "kept"}}', f'{{"b": {deep}}}') == [
        {"a": None, "b": "kept"},
        None,
    ]
    assert parse(VariantType(), long, deep) == [None, None]
    (variant,) = parse(VariantType(), '{"a": 1.50}')
    assert VariantVal(variant["value"], variant["metadata"]).toPython() == {"a": Decimal("1.5")}


def test_times() -> None:
    assert parse(
        TimestampType(), '"2026-11-20T12:00:00.000001+01:00"', '"2026-11-20 12:00"', '"soon"', "5"
    ) == [
        datetime(2026, 11, 20, 11, 0, 0, 1, UTC),
        datetime(2026, 11, 20, 12, 0, tzinfo=UTC),
        None,
        datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC),
    ]
    assert parse(DateType(), '"2026-11-20"', "20261120") == [date(2026, 11, 20), None]
