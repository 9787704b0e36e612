"""Listings that are read in parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gapless._call import JSON, Call, Request, Slice, json_of, params_from
from gapless._errors import ProtocolError
from gapless._retry import Reply

T = TypeVar("T")


def listing(
    where: str,
    name: str,
    item: Callable[[Any], T],
    asked: Mapping[str, Any],
    page_size: int,
    cursor: str | None = None,
) -> Call[Slice[T]]:
    """All items under `name` in the answers of `where`, `page_size` items a request (up to 1000)."""

    def decode(reply: Reply) -> Slice[T]:
        answer = json_of(reply)
        if not isinstance(answer, dict) or not isinstance(answer.get(name), list):
            raise ProtocolError(f"not a list of {name}: {answer!r:.200}")
        following = answer.get("cursor")
        # If the service returned the same cursor again, this would ask for ever.
        stuck = following is None or str(following) in ("", cursor)
        more = answer.get("has_more", following is not None) and not stuck
        items = tuple(item(raw) for raw in answer[name])
        return Slice(items, listing(where, name, item, asked, page_size, str(following)) if more else None)

    params = params_from({**asked, "limit": page_size, "cursor": cursor})
    return Call(Request("GET", where, params, JSON), decode)
