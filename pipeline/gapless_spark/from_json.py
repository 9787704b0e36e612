"""What Spark's `from_json` makes of a JSON value, in Python: `convert` gives what Arrow takes for a type.

Other than there, text keeps the spelling of numbers, and 128 to 255 do not become negative as `tinyint`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from gapless_spark.errors import BadOption

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

Convert = Callable[[Any], Any]
"""Converts a parsed JSON value that is not null. Raises `MisfitError`."""

_BLANK = "".join(map(chr, range(33))) + "\x7f"
_INTEGER = re.compile(r"-?[0-9]+")
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_BASE64 = re.compile(r"(?:[\0- ]*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==))*[\0- ]*")
_DAY = re.compile(r"([+-]?\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.DOTALL | re.ASCII)
_TIME = re.compile(
    r"(?:([+-]?\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2}))?)?|(?=T?\d{1,2}:))"
    r"(?:(?:(?<=\d)[ T]|(?<!\d)T?)(\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?(.*))?)?)?",
    re.DOTALL | re.ASCII,
)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?([0-5]\d)(?::?([0-5]\d))?)?", re.ASCII)
_SHORT_ZONES = {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "EST": "-05:00",
    "HST": "-10:00",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "MST": "-07:00",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}
"""Java's."""
_BITS = {"byte": 15, "short": 15, "integer": 31, "long": 63}
_WORDS = {
    "NaN": float("nan"),
    **dict.fromkeys(("+INF", "+Infinity", "Infinity"), float("inf")),
    **dict.fromkeys(("-INF", "-Infinity"), float("-inf")),
}
_MICROS = 1_000_000
_DAYS_OF_400_YEARS = 146_097


class MisfitError(ValueError):
    """The value does not fit its type. The field of a struct is then null, an array or a map as a whole."""


class Number(str):
    """A JSON number in its spelling."""

    __slots__ = ()


def converter(kind: DataType, zone: tzinfo) -> Convert:
    """A conversion to `kind`. A time without a zone is one in `zone`. Raises `BadOption` for other types."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType

    if isinstance(kind, StructType):
        return _struct([(field.name, converter(field.dataType, zone)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return _list(converter(kind.elementType, zone))
    if isinstance(kind, MapType) and kind.keyType.typeName() == "string":
        return _map(converter(kind.valueType, zone))
    if isinstance(kind, DecimalType):
        return _decimal(kind.precision, kind.scale)
    name = kind.typeName()
    if name in _BITS:
        limit = 1 << _BITS[name]
        return _byte if name == "byte" else lambda value: _integer(value, limit)
    if name == "timestamp":
        return lambda value: _timestamp(value, zone)
    if name in _SCALARS:
        return _SCALARS[name]
    raise BadOption(
        f"payload: cannot read JSON as {kind.simpleString()}; parse data with gapless_spark.parsed"
    )


def zone_of(name: str) -> tzinfo:
    """The zone of a name as Spark takes it. Raises `MisfitError`."""
    name = re.sub(r"([+-])(\d):", r"\g<1>0\2:", name.strip(_BLANK), count=1)
    name = re.sub(r"([+-]\d\d):(\d)$", r"\1:0\2", name)
    name = _SHORT_ZONES.get(name, name)
    if name in ("Z", "UTC", "GMT", "UT"):
        return UTC
    if found := _OFFSET.fullmatch(name):
        hours, minutes, seconds = (int(part or 0) for part in found.groups()[1:])
        offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        if offset > timedelta(hours=18):
            raise MisfitError(name)
        return timezone(-offset if found[1] == "-" else offset)
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        raise MisfitError(name) from None


def _struct(fields: list[tuple[str, Convert]]) -> Convert:
    def member(value: Any, read: Convert) -> Any:
        try:
            return None if value is None else read(value)
        except MisfitError:
            return None

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise MisfitError
        return {name: member(value.get(name), read) for name, read in fields}

    return convert


def _list(read: Convert) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, list):
            raise MisfitError
        return [None if element is None else read(element) for element in value]

    return convert


def _map(read: Convert) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise MisfitError
        return [(name, None if member is None else read(member)) for name, member in value.items()]

    return convert


def _integer(value: Any, limit: int) -> int:
    if not isinstance(value, Number) or len(value) > 20 or _INTEGER.fullmatch(value) is None:
        raise MisfitError
    number = int(value)
    if not -limit <= number < limit:
        raise MisfitError
    return number


def _byte(value: Any) -> int | None:
    # `parsed` reads a smallint and casts it, because `from_json` would make -56 of 200.
    number = _integer(value, 1 << _BITS["short"])
    return number if -128 <= number < 128 else None


def _decimal(precision: int, scale: int) -> Convert:
    context = Context(precision, ROUND_HALF_UP, MIN_EMIN, MAX_EMAX, traps=[InvalidOperation])
    step = Decimal(1).scaleb(-scale)

    def convert(value: Any) -> Decimal:
        text = value if isinstance(value, Number) else _string(value).replace(",", "")
        if _DECIMAL.fullmatch(text) is None:
            raise MisfitError
        try:
            return Decimal(text).quantize(step, context=context)
        except InvalidOperation:
            raise MisfitError from None

    return convert


def _double(value: Any) -> float:
    if isinstance(value, Number):
        return float(value) + (0.0 if _INTEGER.fullmatch(value) else -0.0)  # An integer -0 is 0.
    if (word := _WORDS.get(_string(value))) is None:
        raise MisfitError
    return word


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise MisfitError
    return value


def _binary(value: Any) -> bytes:
    text = _string(value)
    if _BASE64.fullmatch(text) is None:
        raise MisfitError
    quartets = re.findall(r"[A-Za-z0-9+/=]{4}", text)
    return b"".join(map(base64.b64decode, quartets))


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
    if isinstance(value, str) and not isinstance(value, Number):
        return json.dumps(value, ensure_ascii=False)
    return _text(value)


def _string(value: Any) -> str:
    if not isinstance(value, str) or isinstance(value, Number):
        raise MisfitError
    return value


def _date(value: Any) -> int:
    """Days since 1970."""
    text = _string(value)
    if (found := _DAY.fullmatch(text.strip(_BLANK))) and -(1 << 31) <= (days := _days(found)) < 1 << 31:
        return days
    if found or re.fullmatch(r"[+-]?\d+", text) is None:
        raise MisfitError
    # As Spark 1.5 wrote dates.
    if len(text) > 11 or not -(1 << 31) <= (days := int(text)) < 1 << 31:
        raise MisfitError
    return days


def _timestamp(value: Any, zone: tzinfo) -> int:
    """Microseconds since 1970. A number is in seconds, and wraps around in 64 bits as it does in Spark."""
    if isinstance(value, Number):
        micros = _integer(value, 1 << 63) * _MICROS
        return (micros + (1 << 63)) % (1 << 64) - (1 << 63)
    found = _TIME.fullmatch(_string(value).strip(_BLANK))
    if found is None:
        raise MisfitError
    own = zone_of(found[8]) if found[8] else zone
    today = datetime.now(own).date()
    days = _days(found) if found[1] else today.toordinal() - date(1970, 1, 1).toordinal()
    seconds, micros = _clock(found)
    year = int(found[1] or today.year)
    # Rules of zones repeat every 400 years, and there are none before the year 1.
    known = year if 1 <= year <= 9999 else 1 if year < 1 else 9600 + year % 400
    month, day = (int(found[2] or 1), int(found[3] or 1)) if found[1] else (today.month, today.day)
    local = datetime(known, month, day, seconds // 3600, seconds // 60 % 60, seconds % 60, tzinfo=own)
    offset = local.utcoffset() or timedelta()
    return _within((days * 86_400 + seconds - round(offset.total_seconds())) * _MICROS + micros)


def _timestamp_ntz(value: Any) -> int:
    """Microseconds since 1970 by the wall's clock."""
    found = _TIME.fullmatch(_string(value).strip(_BLANK))
    if found is None or not found[1] or found[8]:
        raise MisfitError
    seconds, micros = _clock(found)
    return _within((_days(found) * 86_400 + seconds) * _MICROS + micros)


def _days(found: re.Match[str]) -> int:
    """The days since 1970 of a year, a month and a day, in the proleptic Gregorian calendar."""
    year, month, day = (int(part or 1) for part in found.group(1, 2, 3))
    near = 2000 + year % 400
    try:
        ordinal = date(near, month, day).toordinal()
    except ValueError:
        raise MisfitError from None
    return ordinal - date(1970, 1, 1).toordinal() + (year - near) // 400 * _DAYS_OF_400_YEARS


def _clock(found: re.Match[str]) -> tuple[int, int]:
    """The second of the day, and the microseconds."""
    hour, minute, second = (int(part or 0) for part in found.group(4, 5, 6))
    if hour > 23 or minute > 59 or second > 59:
        raise MisfitError
    return (hour * 60 + minute) * 60 + second, int((found[7] or "")[:6].ljust(6, "0"))


def _within(micros: int) -> int:
    if not -(1 << 63) <= micros < 1 << 63:
        raise MisfitError
    return micros


_SCALARS: dict[str, Convert] = {
    "string": _text,
    "double": _double,
    "float": _double,
    "boolean": _boolean,
    "timestamp_ntz": _timestamp_ntz,
    "date": _date,
    "binary": _binary,
}
