"""Markers: how far users have come in channels, and how much is unread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.api.answers import Count, Id, Time
from app.api.lists import granted_pattern
from app.http.body import read_json
from app.http.parameters import IdCursor, Limit, Name, NamePattern
from app.http.request import Answer, Plain, Request
from app.message import limits
from app.message.refusals import decode
from app.message.times import rfc3339
from subscriptions.domain import marker as domain
from subscriptions.domain.errors import invalid
from subscriptions.domain.marker import NewMarker
from subscriptions.domain.model import MAX_ID
from subscriptions.domain.names import MAX_NAME_CHARACTERS, check_channel
from subscriptions.domain.principal import Action, Noun, Principal
from subscriptions.engine.exchange import Exchange
from subscriptions.engine.hints import MarkerHint
from subscriptions.ports import MarkerPort

READ: Final = "read"
_USER: Final = "The subject of the credential, unless it may moderate."
_User = Annotated[
    str, Meta(min_length=1, max_length=MAX_NAME_CHARACTERS, description=_USER, examples=["ann"])
]
_Upto = Annotated[int, Meta(ge=0, le=MAX_ID, description="The newest message that counts as marked.")]
_Force = Annotated[bool, Meta(description="Move it back too.")]


class MarkerRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How far a user has come. A marker only moves forward, unless it is forced."""

    id: _Upto
    user: _User | UnsetType | None = UNSET
    force: _Force = False


class NamedMarkerRequest(MarkerRequest, kw_only=True, forbid_unknown_fields=True):
    """A marker of a channel."""

    channel: limits.Name
    name: limits.Name


class MarkersRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Markers of several channels."""

    markers: Annotated[list[NamedMarkerRequest], Meta(min_length=1, max_length=limits.MAX_MESSAGES)]


class Marker(msgspec.Struct):
    """How far a user has come in a channel."""

    channel: str
    user: str
    name: str
    id: Id
    updated_at: Time


class Markers(msgspec.Struct):
    """Markers as they are now."""

    markers: list[Marker]


class MarkersQuery(msgspec.Struct):
    """Which channels are listed: those in which the user has a marker of this name."""

    user: _User | UnsetType = UNSET
    pattern: NamePattern | UnsetType = UNSET
    name: Name = READ
    limit: Limit = 100
    cursor: IdCursor = 0


class Unread(msgspec.Struct):
    """A channel after a user's marker. `unread`: how many originals there are not deleted."""

    channel: str
    id: Id
    unread: Count
    last_id: Id
    last_seq: Count


class UnreadPage(msgspec.Struct):
    """A page of channels."""

    markers: list[Unread]
    has_more: bool
    cursor: Id


class ReadersQuery(msgspec.Struct):
    """Which markers of a channel are listed."""

    limit: Limit = 100
    cursor: Annotated[
        str, Meta(max_length=MAX_NAME_CHARACTERS, description="`cursor` of the page before.")
    ] = ""


class ReadersPage(msgspec.Struct):
    """A page of markers."""

    markers: list[Marker]
    has_more: bool
    cursor: str


async def put_marker(request: Plain, markers: MarkerPort, exchange: Exchange) -> Answer:
    """Say how far a user has come in a channel. A marker that is there only moves forward, unless it is
    forced. An id beyond the newest message stands for that one."""
    asked = decode(await read_json(request), MarkerRequest)
    wanted = _wanted(request.principal, request.name, request.marker, asked)
    moved = await markers.mark(request.namespace, [wanted])
    _tell(request.namespace, moved, exchange)
    return Answer(msgspec.json.encode(_shown(moved[0][0])))


async def put_markers(request: Plain, markers: MarkerPort, exchange: Exchange) -> Answer:
    """Say how far users have come in several channels, all or none. The markers are answered in the order of
    the request."""
    body = await read_json(request)
    if body.lstrip().startswith(b"["):  # The array may come alone.
        body = b'{"markers":%b}' % body
    asked = decode(body, MarkersRequest)
    wanted = list(_all_wanted(request.principal, asked.markers))
    moved = await markers.mark(request.namespace, wanted)
    _tell(request.namespace, moved, exchange)
    now = {(marker.channel, marker.user, marker.name): marker for marker, _ in moved}
    shown = [_shown(now[each.channel, each.user, each.name]) for each in wanted]
    return Answer(msgspec.json.encode(Markers(shown)))


async def list_markers(request: Request[MarkersQuery], markers: MarkerPort) -> Answer:
    """List the channels in which a user has a marker, with how much is unread in each. `cursor` goes into the
    next request."""
    query, who = request.query, request.principal
    name = check_channel(query.name, "name")
    user, action = _user(who, None if isinstance(query.user, UnsetType) else query.user)
    regex = granted_pattern(who, query.pattern, Noun.CHANNEL, action)
    limit = query.limit
    rows = await markers.of_user(request.namespace, user, name, regex, query.cursor, limit + 1)
    shown = [Unread(*row[1:]) for row in rows[:limit]]
    cursor = rows[:limit][-1].place if rows else query.cursor
    return Answer(msgspec.json.encode(UnreadPage(shown, len(rows) > limit, cursor)))


async def list_readers(request: Request[ReadersQuery], markers: MarkerPort) -> Answer:
    """List how far each user has come in a channel. `cursor` goes into the next request."""
    cursor, limit = request.query.cursor, request.query.limit
    limits.check_printable(cursor, "cursor")
    rows = await markers.of_channel(request.namespace, request.name, request.marker, cursor, limit + 1)
    shown = list(map(_shown, rows[:limit]))
    cursor = shown[-1].user if shown else cursor
    return Answer(msgspec.json.encode(ReadersPage(shown, len(rows) > limit, cursor)))


def _all_wanted(who: Principal, asked: Iterable[NamedMarkerRequest]) -> Iterable[NewMarker]:
    for index, each in enumerate(asked):
        place = f"markers[{index}]."
        channel = check_channel(each.channel, f"{place}channel")
        yield _wanted(who, channel, check_channel(each.name, f"{place}name"), each, place)


def _wanted(who: Principal, channel: str, name: str, asked: MarkerRequest, place: str = "") -> NewMarker:
    """Raises `forbidden` and `invalid_request`."""
    given = None if isinstance(asked.user, UnsetType) else asked.user
    user, action = _user(who, given, f"{place}user")
    who.require((action,), Noun.CHANNEL, (channel,))
    return NewMarker(channel, user, name, asked.id, asked.force)


def _user(who: Principal, given: str | None, field: str = "user") -> tuple[str, Action]:
    """Whose marker it is, and what may be needed for it: everybody has their own. Raises
    `invalid_request`."""
    user = who.subject if given is None else given
    if user is None:
        raise invalid(field, "is required, as the credential has no subject")
    limits.check_printable(user, field)
    return user, Action.SUBSCRIBE if user == who.subject else Action.MODERATE


def _tell(namespace: str, marked: Iterable[tuple[domain.Marker, bool]], exchange: Exchange) -> None:
    """Tell live readers of the markers that were moved."""
    exchange.send_markers(
        [
            MarkerHint(namespace, marker.channel, msgspec.json.encode(_shown(marker)))
            for marker, is_moved in marked
            if is_moved
        ]
    )


def _shown(marker: domain.Marker) -> Marker:
    return Marker(marker.channel, marker.user, marker.name, marker.id, rfc3339(marker.updated_at_us).decode())
