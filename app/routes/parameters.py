"""Query parameters shared by the REST routes, checked as strictly as bodies are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

from fastapi import Path, Query, Request

from subscriptions.domain.errors import invalid
from subscriptions.domain.model import MAX_ID
from subscriptions.domain.names import MAX_NAME_CHARACTERS

ChannelName = Annotated[
    str,
    Path(description="Channel name: tokens of [A-Za-z0-9_~:@-] joined by dots.", examples=["chat.lobby"]),
]
Id = Annotated[int, Path(ge=0, le=MAX_ID, description="Message id.")]
After = Annotated[int | None, Query(ge=0, le=MAX_ID, description="Only messages after this id.")]
Before = Annotated[int | None, Query(ge=0, le=MAX_ID + 1, description="Only messages before this id.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many.")]
Types = Annotated[list[str] | None, Query(alias="type", description="Only these types.", max_length=128)]
Keys = Annotated[list[str] | None, Query(alias="key", description="Only these keys.", max_length=128)]
SinceText = Annotated[
    str | None, Query(alias="since", max_length=64, description="RFC 3339, or how long ago: 10m, 2h, 1d.")
]
NAME_CHARACTERS: Final = MAX_NAME_CHARACTERS


def only(request: Request, known: Iterable[str]) -> None:
    """Raises `invalid_request` for a parameter that the route does not have, or one repeated in vain."""
    allowed = set(known)
    for name in request.query_params:
        if name not in allowed:
            raise invalid(name, "is not a parameter of this request")
