"""Decodes bodies as their structs, or says in terms of their members why one was refused."""

from __future__ import annotations

from typing import Final, NoReturn, TypeVar

import msgspec
from msgspec import UNSET

from app.message import json, limits
from subscriptions.domain.errors import MAX_FIELD_CHARACTERS, GaplessError, invalid
from subscriptions.domain.model import GIVEN_BY_SERVER

FAILURES: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_UNKNOWN: Final = "Object contains unknown field `"
_MISSING: Final = "Object missing required field `"
_NO_CHOICE: Final = "Invalid enum value "


def refuse(body: bytes, error: Exception) -> NoReturn:
    """Raise the reason why a body did not decode: first as JSON, then as the expected type."""
    if isinstance(error, msgspec.ValidationError):
        json.check(body)
        raise field_error(str(error)) from None
    raise json.refusal(body, error) from None


def reason_of(error: Exception) -> str:
    """What one of `FAILURES` says, in a bounded length."""
    return field_error(str(error)).detail if isinstance(error, msgspec.ValidationError) else str(error)


def field_error(text: str) -> GaplessError:
    """Makes a field error of msgspec's text, which says what is wrong and where."""
    what, placed, where = text.rpartition(" - at `$")
    if not placed:
        what, where = text, ""
    if what.startswith(_NO_CHOICE):
        # The text repeats the value, which may be long.
        what = what[: len(_NO_CHOICE) + MAX_FIELD_CHARACTERS]
    where = where.removesuffix("`").removeprefix(".")
    if what.startswith(_MISSING):
        return invalid(limits.join(where, what[len(_MISSING) :].removesuffix("`")), "is required")
    if what.startswith(_UNKNOWN):
        name = what[len(_UNKNOWN) :].removesuffix("`")
        rule = "is given by the server" if name in GIVEN_BY_SERVER else "is not a known member"
        return invalid(limits.join(where, name), rule)
    return invalid(where or "body", what[:1].lower() + what[1:].replace("`", ""))


_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def decode_flat(decoder: msgspec.json.Decoder[_Struct], body: bytes) -> _Struct:
    """Decode an object without objects in it."""
    try:
        asked = decoder.decode(body)
    except FAILURES as error:
        refuse(body, error)
    json.check_text(body, members(asked))
    return asked


def members(struct: msgspec.Struct) -> int:
    """How many members were given."""
    return sum(getattr(struct, name) is not UNSET for name in struct.__struct_fields__)


def decode(raw: bytes, form: type[_Struct]) -> _Struct:
    """Decodes strict JSON of this form."""
    json.check(raw)
    try:
        return msgspec.json.decode(raw, type=form)
    except msgspec.ValidationError as error:
        raise field_error(str(error)) from None
