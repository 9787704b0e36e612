"""The forms of `data`, the JSON text of a message, in a DataFrame.

`string` keeps the text: this is fastest, and numbers keep their spelling. The function `parsed` lets Spark
parse the text of a DataFrame, on all cores of the JVM. The option `payload` parses it inside the source,
message by message: a value that does not fit its type becomes null, and the rest of the message stays.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from gapless_spark.errors import BadOption

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

Convert = Callable[[Any], Any]
_TYPE = re.compile(r"([A-Za-z_]+)\s*(\([0-9, ]+\))?\s*(?:<(.*)>)?", re.DOTALL)
_MEMBER = re.compile(r"(`[^`]+`|\w+)(?:\s*:\s*|\s+)(.+)", re.DOTALL)
_DECIMAL = ("decimal", "dec", "numeric")
_SIMPLE = re.compile(
    "tinyint|byte|smallint|short|int|integer|bigint|long|float|real|double|string|boolean|binary|date"
    "|timestamp|timestamp_ltz|timestamp_ntz"
)
_INTEGER = re.compile(r"-?[0-9]+")
_BEYOND = (ValueError, RecursionError)
"""Python's errors for JSON beyond its limits. Messages published in SQL may have numbers of any length, and
any nesting."""
_BITS = {"byte": 7, "short": 15, "integer": 31, "long": 63}


class _Number(str):
    """A JSON number in its spelling."""

    __slots__ = ()


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


def _type(text: str) -> str:
    """A type that `_converter` knows, in Spark's DDL. Raises ValueError."""
    found = _TYPE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no type")
    name, digits, inner = found[1].lower(), found[2], found[3]
    if inner is None:
        if name in _DECIMAL or (_SIMPLE.fullmatch(name) and digits is None):
            return name + (digits or "")
        raise ValueError(f"{text!r} is no type that JSON can be read as")
    if name == "struct":
        return f"struct<{_members(inner)}>"
    parts = _split(inner)
    if name == "array" and len(parts) == 1:
        return f"array<{_type(parts[0])}>"
    if name == "map" and len(parts) == 2 and parts[0].strip().lower() == "string":
        return f"map<string,{_type(parts[1])}>"
    raise ValueError(f"{text!r} is no type; the keys of a map are strings")


def _members(text: str) -> str:
    """The fields of a struct. Raises ValueError."""
    fields = []
    for part in _split(text):
        found = _MEMBER.fullmatch(part.strip())
        if found is None:
            raise ValueError(f"{part.strip()!r} is not a name and a type")
        fields.append(f"{found[1]}: {_type(found[2])}")
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
    string`). Malformed parts become null. This is faster than the option `payload`."""
    from pyspark.sql import functions

    kind = payload_type(payload)
    if kind == "string":
        return messages
    made = (
        functions.try_parse_json(column)
        if kind == "variant"
        else functions.from_json(functions.col(column), kind)
    )
    return messages.withColumn(column, made)


def with_payload(batches: Iterator[pa.RecordBatch], schema: StructType) -> Iterator[pa.RecordBatch]:
    """The batches with `data` converted to its type in `schema`, which is one of `payload_type`."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StringType, VariantType

    kind = schema["data"].dataType
    if isinstance(kind, StringType):
        yield from batches
        return
    convert = _variant if isinstance(kind, VariantType) else _reader(kind)
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


def _reader(kind: DataType) -> Convert:
    convert = _converter(kind)

    def read(text: str) -> Any:
        try:
            value = json.loads(text, parse_float=_Number, parse_int=_Number, parse_constant=_Number)
            return None if value is None else convert(value)
        except _BEYOND:
            return None

    return read


def _converter(kind: DataType) -> Convert:
    """A function that converts a parsed JSON value (not null) to a value that Arrow takes for `kind`, or to
    null if it does not fit."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType

    if isinstance(kind, StructType):
        return _struct([(field.name, _converter(field.dataType)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return _list(_converter(kind.elementType))
    if isinstance(kind, MapType) and kind.keyType.typeName() == "string":
        return _map(_converter(kind.valueType))
    if isinstance(kind, DecimalType):
        return lambda value: _decimal(value, kind.precision, kind.scale)
    name = kind.typeName()
    if name in _BITS:
        limit = 1 << _BITS[name]
        return lambda value: _integer(value, limit)
    if name in _SCALARS:
        return _SCALARS[name]
    raise BadOption(
        f"payload: cannot read JSON as {kind.simpleString()}; parse data with gapless_spark.parsed"
    )


def _struct(fields: list[tuple[str, Convert]]) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            return None
        return {name: None if (member := value.get(name)) is None else read(member) for name, read in fields}

    return convert


def _list(read: Convert) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, list):
            return None
        return [None if element is None else read(element) for element in value]

    return convert


def _map(read: Convert) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            return None
        return [(name, None if member is None else read(member)) for name, member in value.items()]

    return convert


def _integer(value: Any, limit: int) -> int | None:
    if not isinstance(value, _Number) or len(value) > 20 or _INTEGER.fullmatch(value) is None:
        return None
    number = int(value)
    return number if -limit <= number < limit else None


def _decimal(value: Any, precision: int, scale: int) -> Decimal | None:
    if not isinstance(value, _Number):
        return None
    try:
        number = Decimal(value).quantize(Decimal(1).scaleb(-scale))
    except InvalidOperation:
        return None
    return number if len(number.as_tuple().digits) <= precision else None


def _double(value: Any) -> float | None:
    return float(value) if isinstance(value, _Number) else None


def _boolean(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: Any) -> str:
    """A string as it is, any other value as JSON text with numbers in their spelling."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, dict):
        members = (
            f"{json.dumps(name, ensure_ascii=False)}:{_json(member)}" for name, member in value.items()
        )
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json, value)) + "]"
    return json.dumps(value)


def _json(value: Any) -> str:
    if isinstance(value, str) and not isinstance(value, _Number):
        return json.dumps(value, ensure_ascii=False)
    return _text(value)


def _of_string(read: Callable[[str], Any]) -> Convert:
    """A conversion of JSON strings with `read`; null for other values, and for a string that `read`
    refuses."""

    def convert(value: Any) -> Any:
        if not isinstance(value, str) or isinstance(value, _Number):
            return None
        try:
            return read(value)
        except (ValueError, OverflowError):
            return None

    return convert


def _timestamp(text: str) -> datetime:
    """A time from ISO 8601, in UTC if it has no zone."""
    time = datetime.fromisoformat(text)
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


_SCALARS: dict[str, Convert] = {
    "string": _text,
    "double": _double,
    "float": _double,
    "boolean": _boolean,
    "timestamp": _of_string(_timestamp),
    "timestamp_ntz": _of_string(lambda text: datetime.fromisoformat(text).replace(tzinfo=None)),
    "date": _of_string(date.fromisoformat),
    "binary": _of_string(lambda text: base64.b64decode(text, validate=True)),
}
