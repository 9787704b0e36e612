"""Query parameters shared by the REST routes, checked as strictly as bodies are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

from fastapi import Path, Query, Request
from pydantic import BeforeValidator

from subscriptions.domain.errors import invalid
from subscriptions.domain.model import MAX_ID
from subscriptions.domain.names import MAX_NAME_CHARACTERS, NAME_PART

NAME_PATTERN: Final = rf"^{NAME_PART}(\.{NAME_PART})*$"


def _digits(value: object) -> object:
    """Numbers are written one way: `1_0`, `+1` and ` 1` are no numbers here."""
    if isinstance(value, str) and not (value.isascii() and value.isdigit()):
        raise ValueError("must be a number")
    return value


Digits = BeforeValidator(_digits)

ChannelName = Annotated[
    str,
    Path(
        description="Channel name: tokens of [A-Za-z0-9_~:@-] joined by dots.",
        examples=["chat.lobby"],
        json_schema_extra={"pattern": NAME_PATTERN, "minLength": 1, "maxLength": MAX_NAME_CHARACTERS},
    ),
]
Name = Annotated[
    str,
    Path(
        description="Name: tokens of [A-Za-z0-9_~:@-] joined by dots.",
        examples=["orders"],
        json_schema_extra={"pattern": NAME_PATTERN, "minLength": 1, "maxLength": MAX_NAME_CHARACTERS},
    ),
]
Id = Annotated[int, Path(ge=0, le=MAX_ID, description="Message id."), Digits]
After = Annotated[int | None, Query(ge=0, le=MAX_ID, description="Only messages after this id."), Digits]
Before = Annotated[
    int | None, Query(ge=0, le=MAX_ID + 1, description="Only messages before this id."), Digits
]
Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many."), Digits]
IdCursor = Annotated[int, Query(ge=0, le=MAX_ID, description="Where the page before ended."), Digits]
Types = Annotated[list[str] | None, Query(alias="type", description="Only these types.", max_length=128)]
Keys = Annotated[list[str] | None, Query(alias="key", description="Only these keys.", max_length=128)]
SinceText = Annotated[
    str | None,
    Query(
        alias="since",
        max_length=64,
        description="RFC 3339, or how long ago: 10m, 2h, 1d.",
        json_schema_extra={"pattern": r"^(\d{1,9}[smhd]|\d{4}-\d\d-\d\d[Tt].*)$"},
    ),
]
_REPEATABLE: Final = frozenset({"type", "key"})


def only(request: Request, known: Iterable[str]) -> None:
    """Raises `invalid_request` for a parameter that the route does not have, or one repeated in vain."""
    allowed = set(known)
    for name in request.query_params:
        if name not in allowed:
            raise invalid(name, "is not a parameter of this request")
        if name not in _REPEATABLE and len(request.query_params.getlist(name)) > 1:
            raise invalid(name, "was given more than once")
