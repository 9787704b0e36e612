"""Checks for strict JSON, with the rules of the service's HTTP API: every reader reads the same value."""

from __future__ import annotations

import json
import re
from typing import Any, Final

MAX_DEPTH: Final = 32
_LOWEST_INTEGER: Final = -(2**63)
_HIGHEST_INTEGER: Final = 2**64 - 1
_MAX_NUMBER_CHARACTERS: Final = 15_000
_LOWEST_EXPONENT: Final = -400

# Texts that need the second, slower check: escapes of NUL and of surrogates, long numbers, exponents.
_RARE: Final = re.compile(r"\\u(?:0000|[dD][89a-fA-F])|[0-9]{19}|[0-9][eE][-+0-9]")


class _UnfitError(Exception):
    """The text is JSON that cannot be stored; the argument says why."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _UnfitError("the same key occurs twice in one JSON object")
    return made


def _constant(name: str) -> None:
    raise _UnfitError(f"holds {name}, which JSON does not have")


def _float(digits: str) -> float:
    value = float(digits)
    mantissa, _, exponent = digits.lower().partition("e")
    vanished = value == 0 and mantissa.strip("-0.") != ""
    tiny = exponent.startswith("-") and int(exponent[:8]) < _LOWEST_EXPONENT
    if abs(value) == float("inf") or vanished or tiny or len(digits) > _MAX_NUMBER_CHARACTERS:
        raise _UnfitError("holds a number that does not fit double precision")
    return value


def _integer(digits: str) -> int:
    # Longer texts are not converted: that takes time quadratic in their length.
    if len(digits) > 20 or not _LOWEST_INTEGER <= int(digits) <= _HIGHEST_INTEGER:
        raise _UnfitError("holds an integer of more than 64 bits")
    return int(digits)


_decode: Final = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant).decode
_decode_closely: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_constant, parse_float=_float, parse_int=_integer
).decode


def why_unfit(text: str) -> str | None:
    """Why `text` cannot be the data of a message, as the end of a sentence about it; None if it can."""
    try:
        if text.count("{") + text.count("[") <= MAX_DEPTH and _RARE.search(text) is None:
            _decode(text)
            return None
        return _look_closely(text)
    except _UnfitError as error:
        return str(error)
    except RecursionError:
        return f"is nested deeper than {MAX_DEPTH} levels"
    except ValueError as error:
        return f"is no JSON ({error})"


def _look_closely(text: str) -> str | None:
    value = _decode_closely(text)
    if "\\u0000" in text.replace("\\\\", ""):
        return "holds \\u0000, which cannot be stored"
    if _depth(value) > MAX_DEPTH:
        return f"is nested deeper than {MAX_DEPTH} levels"
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "holds half of a surrogate pair, which is no character"
    return None


def _depth(value: Any) -> int:
    """The depth of nested arrays and objects, the outermost included."""
    depth = 0
    level = [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [item for c in level for item in (c.values() if isinstance(c, dict) else c)]
    return depth
