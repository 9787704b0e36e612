"""Parameters of routes, in the path and in the query, checked as strictly as bodies.

A route's query is a struct with a member for each parameter. Its annotations hold types, limits and
descriptions; the OpenAPI document and the reference are made of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta
from msgspec.inspect import IntType, ListType, Metadata, Type, UnionType, type_info

from app.message import limits
from app.message.limits import MAX_FILTERS
from app.message.refusals import field_error
from app.message.times import MAX_MOMENT_CHARACTERS, SINCE_PATTERN
from subscriptions.domain.errors import Code, GaplessError, invalid
from subscriptions.domain.model import MAX_ID
from subscriptions.domain.names import MAX_NAME_CHARACTERS, NAME_PART
from subscriptions.domain.selection import Changes

MAX_LIMIT: Final = 1000
MAX_LAST: Final = 1000

_NAME: Final = {
    "pattern": rf"^{NAME_PART}(\.{NAME_PART})*$",
    "minLength": 1,
    "maxLength": MAX_NAME_CHARACTERS,
}
_RULE: Final = "tokens of [A-Za-z0-9_~:@-] joined by dots."

# In paths.

Id = Annotated[int, Meta(ge=0, le=MAX_ID)]
IN_PATH: Final[Mapping[str, Any]] = {
    "channel": Annotated[
        str, Meta(description=f"Channel name: {_RULE}", examples=["chat.lobby"], extra_json_schema=_NAME)
    ],
    "name": Annotated[str, Meta(description=f"Name: {_RULE}", examples=["billing"], extra_json_schema=_NAME)],
    "namespace": Annotated[
        str, Meta(description=f"Namespace: {_RULE}", examples=["acme"], extra_json_schema=_NAME)
    ],
    "key": Annotated[
        str, Meta(description="The key's id.", examples=["3k9x2m7q1b5d"], extra_json_schema=_NAME)
    ],
    "marker": Annotated[
        str, Meta(description=f"The marker's name: {_RULE}", examples=["read"], extra_json_schema=_NAME)
    ],
    "message_id": Annotated[Id, Meta(description="Message id.", examples=[1042])],
    "dead_letter_id": Annotated[Id, Meta(description="Dead letter id.", examples=[3])],
    "scheduled_id": Annotated[Id, Meta(description="The scheduled_id.", examples=[7])],
}
"""The placeholders that a path may have in braces: at most one name, then at most one number or marker."""

# In queries.

Name = Annotated[str, Meta(extra_json_schema=_NAME)]
NamePattern = Annotated[
    str, Meta(description="Only matching names.", max_length=MAX_NAME_CHARACTERS, examples=["orders.*"])
]
Limit = Annotated[int, Meta(ge=1, le=MAX_LIMIT, description="At most so many.")]
NameCursor = Annotated[str, Meta(max_length=MAX_NAME_CHARACTERS, description="`cursor` of the page before.")]
IdCursor = Annotated[Id, Meta(description="`cursor` of the page before.")]
LogCursor = Annotated[Id, Meta(description="Only messages after this id.", extra={"status": 400})]
"""A cursor of a stream. A bad cursor is refused with 400: its client must begin again."""
Types = Annotated[
    list[limits.Type],
    Meta(max_length=MAX_FILTERS, description="Only these types."),
]
Keys = Annotated[
    list[limits.Key],
    Meta(max_length=MAX_FILTERS, description="Only these keys."),
]
ChangesFilter = Annotated[
    Changes,
    Meta(description="With the messages that change others, without them, or only them."),
]
Since = Annotated[
    str,
    Meta(
        description="RFC 3339, or an age: 10m, 2h, 1d.",
        max_length=MAX_MOMENT_CHARACTERS,
        examples=["10m"],
        extra_json_schema={"pattern": SINCE_PATTERN},
    ),
]
Heartbeat = Annotated[int, Meta(ge=5, le=60, description="Seconds of silence before a heartbeat comment.")]
ChannelOrPattern = Annotated[
    str,
    Meta(
        extra_json_schema={"pattern": r"^[A-Za-z0-9_~:@*>.-]{1,255}$", "maxLength": MAX_NAME_CHARACTERS},
    ),
]
Unused = Annotated[str, Meta(max_length=4096, description="Accepted, and without effect.")]
Ticket = Annotated[str, Meta(max_length=4096, description="A credential; refused, as there are none yet.")]


class DryRunQuery(msgspec.Struct):
    """Whether the request only shows its result."""

    dry_run: Annotated[bool, Meta(description="Only show the result; change nothing.")] = False


def read_number(text: str, field: str) -> int:
    """An id in a path. Raises `invalid_request` about `field`."""
    number = _number(text)
    if number is None or number > MAX_ID:
        raise invalid(field, f"must be a number from 0 to {MAX_ID}")
    return number


def read_query(query: bytes, form: Any) -> Any:
    """The parameters of a query string as the struct `form`, or None if the route has none. Raises
    `invalid_request`, with 400 if the string or a cursor is malformed."""
    known = _parameters(form)
    given: dict[str, Any] = {}
    for name, text in _pairs(query):
        kind = known.get(name)
        if kind is None:
            raise invalid(name, "is not a parameter of this request")
        number = _number(text) if kind.is_number else None
        value = text if number is None else number
        if kind.is_list:
            given.setdefault(name, []).append(value)
        elif name in given:
            raise _refused(kind, invalid(name, "was given more than once"))
        else:
            given[name] = value
        if kind.is_number and number is None:
            raise _refused(kind, invalid(name, "must be a whole number"))
    if form is None:
        return None
    try:
        return msgspec.convert(given, form, strict=False)
    except msgspec.ValidationError as error:
        refused = field_error(str(error))
        raise _refused(known.get(refused.errors[0].field), refused) from None


def _pairs(query: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=1000)
    except (UnicodeDecodeError, ValueError):
        raise GaplessError(Code.INVALID_REQUEST, "the query is not valid", status=400) from None


def _number(text: str) -> int | None:
    # Only plain digits are numbers here: `1_0`, `+1` and ` 1` are not.
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None


class _Kind(msgspec.Struct, frozen=True):
    is_list: bool
    is_number: bool
    status: int | None


@cache
def _parameters(form: Any) -> dict[str, _Kind]:
    """The kind of each parameter of a query."""
    if form is None:
        return {}
    return {field.encode_name: _kind(field.type) for field in type_info(form).fields}  # type: ignore[attr-defined]


def _kind(given: Type) -> _Kind:
    status = None
    while isinstance(given, (Metadata, UnionType)):
        if isinstance(given, Metadata):
            status = (given.extra or {}).get("status", status)
            given = given.type
        else:
            given = given.types[0]
    return _Kind(isinstance(given, ListType), isinstance(given, IntType), status)


def _refused(kind: _Kind | None, error: GaplessError) -> GaplessError:
    if kind is None or kind.status is None:
        return error
    return GaplessError(error.code, error.detail, errors=error.errors, status=kind.status)
