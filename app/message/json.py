"""Strict JSON: accepted texts mean the same to every reader, in every language, on one line.

The common case is decided in C (msgspec) and by one walk over the containers. The reason for a refusal is
found afterwards by the slower reader of the standard library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from subscriptions.domain.errors import Code, FieldError, GaplessError, invalid

MAX_DEPTH: Final = 32
"""Arrays and objects within one another, the outermost included."""

MAX_PARTS: Final = 700_000
"""Arrays, objects and commas of one text together: no message of 1 MiB can hold more. Decoding makes an
object of each part, so the time depends on their number, not on the bytes."""

LOWEST_INTEGER: Final = -(2**63)
HIGHEST_INTEGER: Final = 2**64 - 1

TOO_DEEP: Final = f"is nested deeper than {MAX_DEPTH} levels"
OUT_OF_RANGE: Final = "holds a number that does not fit: integers are of 64 bits, others of double precision"
_NUL: Final = "holds \\u0000, which cannot be stored"
_SURROGATE: Final = "holds half of a surrogate pair, which is no character"
_CONSTANT: Final = "holds NaN or Infinity, which JSON does not have"
_INFINITY: Final = float("inf")

_decode: Final = msgspec.json.Decoder().decode
_WHITESPACE: Final = b" \t\r\n"
_SPACES: Final = bytes.maketrans(b"\r\n", b"  ")
# A cast to jsonb makes Postgres read a json number as `numeric`, which fails on more decimals than these.
_MAX_NUMBER_CHARACTERS: Final = 15_000
_LONG_NUMBER: Final = b"0" * (_MAX_NUMBER_CHARACTERS + 1)
_OF_NUMBERS: Final = bytes.maketrans(b"123456789.eE+-", b"00000000000000")
_TINY: Final = re.compile(rb"(?<![0-9.])[0-9.]++[eE]-[0-9]{3,}+")
_TOO_TINY: Final = re.compile(rb"[eE]-0*+(?:[4-9][0-9]{2}|[1-9][0-9]{3})")
_NOT_ZERO: Final = re.compile(rb"[0.]*+[1-9]")


def check(raw: bytes) -> Any:
    """Decode a whole JSON text.

    Raises `malformed_json` for a text that is not JSON (RFC 8259, no byte order mark) or repeats a key;
    `invalid_request` about `body` for JSON that cannot be stored: NUL, lone surrogates, NaN, numbers out of
    range, more than `MAX_DEPTH` levels; and `payload_too_large` as `check_parts` does.
    """
    check_parts(raw)
    try:
        value = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refusal(raw, error) from None
    check_text(raw, count_keys(value, "body"))
    return value


def check_parts(raw: bytes) -> None:
    """Raise `payload_too_large` for a text of more than `MAX_PARTS`, JSON or not, before it is decoded."""
    if len(raw) <= MAX_PARTS or _parts(raw) <= MAX_PARTS:
        return
    # Commas in strings do not count. Each string is between two quotes.
    text = _without_escapes(raw)
    if text.count(b'"') > 4 * MAX_PARTS or _parts(_outside_strings(text)) > MAX_PARTS:
        wrong = f"holds more than {MAX_PARTS:,} arrays, objects and commas"
        raise GaplessError(Code.PAYLOAD_TOO_LARGE, f"the body {wrong}", errors=(FieldError("body", wrong),))


def _parts(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _without_escapes(raw: bytes) -> bytes:
    """The text without escapes: every quote that is left begins or ends a string."""
    return raw.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in raw else raw


def _outside_strings(text: bytes) -> bytes:
    """The parts outside of strings, in a text of `_without_escapes`."""
    return b"".join(text.split(b'"')[::2])


def count_keys(value: Any, field: str) -> int:
    """The number of object keys in a decoded value, at any depth.

    Raises `invalid_request` about `field` if it is nested too deep or holds an integer out of range.
    """
    keys = depth = 0
    kind = value.__class__
    level: list[Any] = [value] if kind is dict or kind is list else [(value,)]
    while level:
        depth += 1
        below: list[Any] = []
        for container in level:
            if container.__class__ is dict:
                keys += len(container)
                container = container.values()
            for item in container:
                kind = item.__class__
                if kind is dict or kind is list:
                    below.append(item)
                elif kind is int and not LOWEST_INTEGER <= item <= HIGHEST_INTEGER:
                    raise invalid(field, OUT_OF_RANGE)
        level = below
    if depth > MAX_DEPTH:
        raise invalid(field, TOO_DEEP)
    return keys


def check_text(raw: bytes, keys: int) -> None:
    """Check for faults that decoding hides, in a text that decoded to `keys` object keys.

    Raises `malformed_json` when a key was repeated, `invalid_request` when a string holds NUL or a number has
    more decimals than double precision and SQL can take.
    """
    if b"\\u0000" in raw and b"\\u0000" in raw.replace(b"\\\\", b""):
        raise invalid("body", _NUL)
    if b"e-" in raw or b"E-" in raw or len(raw) > _MAX_NUMBER_CHARACTERS:
        _check_numbers(raw)
    # Without whitespace every key is followed by `":`. A string can only add to that count. If the count
    # equals the number of decoded keys, none was lost; else the colons outside of strings are counted.
    if (
        raw.translate(None, _WHITESPACE).count(b'":') != keys
        and _outside_strings(_without_escapes(raw)).count(b":") != keys
    ):
        raise GaplessError(Code.MALFORMED_JSON, "the same key occurs twice in one JSON object")


def _check_numbers(raw: bytes) -> None:
    """Checks the numbers. It reads each byte once, in C except for suspicious parts."""
    if not (_LONG_NUMBER in raw.translate(_OF_NUMBERS) or _TINY.search(raw)):
        return
    outside = _outside_strings(_without_escapes(raw))
    if _LONG_NUMBER in outside.translate(_OF_NUMBERS) or _TOO_TINY.search(outside):
        raise invalid("body", OUT_OF_RANGE)
    nothing = [number for number in _TINY.findall(outside) if float(number) == 0]
    if any(map(_NOT_ZERO.match, nothing)):
        raise invalid("body", OUT_OF_RANGE)


def one_line(raw: bytes) -> bytes:
    """The same JSON text without line breaks: valid strings hold none, so only whitespace changes."""
    return raw.translate(_SPACES) if b"\n" in raw or b"\r" in raw else raw


def refusal(raw: bytes, error: Exception) -> GaplessError:
    """The error for `raw`, which msgspec refused with `error`; see `check` for the codes."""
    if isinstance(error, RecursionError):
        return invalid("body", TOO_DEEP)
    try:
        text = raw.decode()
    except UnicodeDecodeError as wrong:
        return GaplessError(Code.MALFORMED_JSON, f"not UTF-8 at byte {wrong.start}")
    if text.startswith("\ufeff"):
        return GaplessError(Code.MALFORMED_JSON, "starts with a byte order mark")
    return _second_opinion(text, error)


def _second_opinion(text: str, error: Exception) -> GaplessError:
    """The standard library reads NaN, lone surrogates and numbers of any size: those are well formed."""
    found: list[str] = []
    try:
        value = json.loads(
            text,
            parse_int=lambda digits: _note(found, OUT_OF_RANGE, not _fits(digits)),
            parse_float=lambda digits: _note(found, OUT_OF_RANGE, float(digits) in (_INFINITY, -_INFINITY)),
            parse_constant=lambda _: _note(found, _CONSTANT, True),
        )
    except RecursionError:
        return invalid("body", TOO_DEEP)
    except json.JSONDecodeError as wrong:
        return GaplessError(
            Code.MALFORMED_JSON, f"not JSON at line {wrong.lineno}, column {wrong.colno}: {wrong.msg}"
        )
    if not found and _has_surrogate(value):
        found.append(_SURROGATE)
    if found:
        return invalid("body", found[0])
    return GaplessError(Code.MALFORMED_JSON, f"not JSON: {error}")


def _fits(digits: str) -> bool:
    # Longer texts are not converted: that takes time quadratic in their length.
    return len(digits) <= 20 and LOWEST_INTEGER <= int(digits) <= HIGHEST_INTEGER


def _note(found: list[str], message: str, wrong: bool) -> int:
    if wrong:
        found.append(message)
    return 0


def _has_surrogate(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def number(value: float) -> float:
    """The same number, as an integer if it is whole: seconds are shown in this form."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def plain(value: Any) -> Any:
    """A JSON value with every whole number as an integer."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return number(value)
