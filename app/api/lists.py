"""Pages of lists, by name and by id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from app.api.answers import stored
from app.http.parameters import Limit, NameCursor, NamePattern
from app.http.request import Answer, Request
from subscriptions.domain.delivery import DeadLetter, Scheduled
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.names import is_channel
from subscriptions.domain.pattern import check_pattern, to_regex
from subscriptions.domain.principal import Action, Noun, Principal

Item = TypeVar("Item", DeadLetter, Scheduled)


class NamesQuery(msgspec.Struct):
    """A list by name."""

    pattern: NamePattern | UnsetType = UNSET
    limit: Limit = 100
    cursor: NameCursor = ""


def name_pattern(request: Request[NamesQuery], noun: Noun, *actions: Action) -> str | None:
    """The regular expression for the names of a list, of those that are asked for and on which one of the
    actions is granted; None: all. Raises `invalid_request` and `forbidden`."""
    query = request.query
    if query.cursor and not is_channel(query.cursor):
        raise GaplessError(Code.INVALID_REQUEST, "cursor: is not one of this list", status=400)
    return granted_pattern(request.principal, query.pattern, noun, *actions)


def granted_pattern(who: Principal, pattern: str | UnsetType, noun: Noun, *actions: Action) -> str | None:
    """The regular expression for names that match and on which one of the actions is granted; None: all.
    Raises `invalid_request` and `forbidden`."""
    if who.grants is None and pattern is UNSET:
        return None
    asked = check_pattern(pattern, "pattern") if isinstance(pattern, str) else ">"
    return "|".join(map(to_regex, who.narrow(actions, noun, [asked])))


def granted_names(who: Principal, name: str | None, noun: Noun, action: Action) -> str | None:
    """The regular expression for the names on which the action is granted; None: all, or it is granted on the
    one `name` that is asked for. Raises `forbidden`."""
    if name is None:
        return granted_pattern(who, UNSET, noun, action)
    who.require((action,), noun, (name,))
    return None


def page_by_name(
    page_of: Callable[[Any, bool, str | None], msgspec.Struct], found: list[tuple[str, bytes]], limit: int
) -> Answer:
    """A page of a list by name. `found` has one item more than the page if there are more pages."""
    page, has_more = found[:limit], len(found) > limit
    items = [stored(item) for _, item in page]
    return Answer(msgspec.json.encode(page_of(items, has_more, page[-1][0] if has_more else None)))


async def page_by_id(
    page_of: Callable[[Any, bool, int], msgspec.Struct],
    read: Callable[[int, int], Awaitable[Sequence[Item]]],
    encode: Callable[[Item], bytes],
    cursor: int,
    limit: int,
) -> Answer:
    """A page of a list by id, from where the page before ended."""
    page = await read(cursor, limit)
    reached = page[-1].id if page else cursor
    # A page is also limited in bytes, so a short page need not be the last one.
    has_more = bool(page and await read(reached, 1))
    items = [stored(encode(item)) for item in page]
    return Answer(msgspec.json.encode(page_of(items, has_more, reached)))
