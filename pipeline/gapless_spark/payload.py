"""The forms of `data`, the JSON text of a message, in a DataFrame.

`string` keeps the text: this is fastest, and numbers keep their spelling. The function `parsed` lets Spark
parse the text of a DataFrame, on all cores of the JVM. The option `payload` parses it inside the source,
message by message, to the same values: one that does not fit its type becomes null, and the rest of the
message stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gapless_spark.errors import BadOption
from gapless_spark.from_json import Convert, MisfitError, Number, converter, zone_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

_TYPE = re.compile(r"([A-Za-z_]+)\s*(\([0-9, ]+\))?\s*(?:<(.*)>)?", re.DOTALL)
_MEMBER = re.compile(r"(`[^`]+`|\w+)(?:\s*:\s*|\s+)(.+)", re.DOTALL)
_DECIMAL = ("decimal", "dec", "numeric")
_SIMPLE = re.compile(
    "tinyint|byte|smallint|short|int|integer|bigint|long|float|real|double|string|boolean|binary|date"
    "|timestamp|timestamp_ltz|timestamp_ntz"
)
_BEYOND = (ValueError, RecursionError)
"""Python's errors for JSON beyond its limits. Messages published in SQL may have numbers of any length, and
any nesting."""


def payload_type(option: str) -> str:
    """The type of `data` in Spark's DDL, from the option's value: `string`, `variant`, fields (`a int, b
    string`), a type, or a schema in Spark's JSON. Raises `BadOption`."""
    text = option.strip()
    if text.startswith("{"):
        text = _type_of_json(text)
    if text.lower() in ("string", "variant"):
        return text.lower()
    try:
        return _type(text)
    except ValueError:
        pass
    try:
        return f"struct<{_members(text)}>"
    except ValueError as error:
        raise BadOption(
            f"payload: {option!r} is none of string, variant, and a schema as a int, b array<string>: {error}"
        ) from None


def _type_of_json(text: str) -> str:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        return StructType.fromJson(json.loads(text)).simpleString()
    except (ValueError, KeyError, TypeError, PySparkException) as error:
        raise BadOption(f"payload: is no schema in Spark's JSON: {error}") from None


def _type(text: str, wide: bool = False) -> str:
    """A type that `from_json` knows, in Spark's DDL; `wide`: with smallint for tinyint. Raises ValueError."""
    found = _TYPE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no type")
    name, digits, inner = found[1].lower(), found[2], found[3]
    if inner is None:
        if wide and name in ("tinyint", "byte"):
            return "smallint"
        if name in _DECIMAL or (_SIMPLE.fullmatch(name) and digits is None):
            return name + (digits or "")
        raise ValueError(f"{text!r} is no type that JSON can be read as")
    if name == "struct":
        return f"struct<{_members(inner, wide)}>"
    parts = _split(inner)
    if name == "array" and len(parts) == 1:
        return f"array<{_type(parts[0], wide)}>"
    if name == "map" and len(parts) == 2 and parts[0].strip().lower() == "string":
        return f"map<string,{_type(parts[1], wide)}>"
    raise ValueError(f"{text!r} is no type; the keys of a map are strings")


def _members(text: str, wide: bool = False) -> str:
    """The fields of a struct. Raises ValueError."""
    fields = []
    for part in _split(text):
        found = _MEMBER.fullmatch(part.strip())
        if found is None:
            raise ValueError(f"{part.strip()!r} is not a name and a type")
        fields.append(f"{found[1]}: {_type(found[2], wide)}")
    return ", ".join(fields)


def _split(text: str) -> list[str]:
    """The parts between commas outside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def parsed(messages: DataFrame, payload: str = "variant", column: str = "data") -> DataFrame:
    """`messages` with the JSON text of `column` parsed by Spark, as `variant` or with a schema (`a int, b
    string`) or a type. What does not fit becomes null. This is faster than the option `payload`."""
    from pyspark.sql import functions

    kind = payload_type(payload)
    if kind == "string":
        return messages
    if kind == "variant":
        return messages.withColumn(column, functions.try_parse_json(column))
    # In a field of its own any type can be read, and what is no struct is null, not a struct of nulls.
    text = functions.concat(functions.lit('{"v":'), functions.col(column), functions.lit("}"))
    wide = _type(kind, wide=True)
    made = functions.from_json(text, f"struct<v: {wide}>")["v"]
    if wide != _type(kind):
        made = made.try_cast(kind)
    return messages.withColumn(column, made)


def with_payload(
    batches: Iterator[pa.RecordBatch], schema: StructType, zone: str = "UTC"
) -> Iterator[pa.RecordBatch]:
    """The batches with `data` converted to its type in `schema`, which is one of `payload_type`. A time
    without a zone is one in `zone`."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StringType, VariantType

    kind = schema["data"].dataType
    if isinstance(kind, StringType):
        yield from batches
        return
    convert = _variant if isinstance(kind, VariantType) else _reader(kind, zone)
    target = to_arrow_schema(schema, timezone="UTC")
    position = schema.fieldNames().index("data")
    for batch in batches:
        values = [None if text is None else convert(text) for text in batch.column(position).to_pylist()]
        arrays = list(batch.columns)
        arrays[position] = pa.array(values, target.field(position).type)
        yield pa.RecordBatch.from_arrays(arrays, schema=target)


def _variant(text: str) -> dict[str, bytes] | None:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import VariantVal

    try:
        value = VariantVal.parseJson(text)
    except (*_BEYOND, PySparkException):
        return None
    return {"value": value.value, "metadata": value.metadata}


def _reader(kind: DataType, zone: str) -> Convert:
    try:
        convert = converter(kind, zone_of(zone))
    except MisfitError:
        raise BadOption(f"payload: this machine has no data of the session's time zone, {zone}") from None

    def read(text: str) -> Any:
        try:
            value = json.loads(text, parse_float=Number, parse_int=Number, parse_constant=Number)
            return None if value is None else convert(value)
        except _BEYOND:
            return None

    return read
