"""Reads the selection and the start of a live subscription from its query and headers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.http import parameters
from app.http.parameters import (
    MAX_LAST,
    ChangesFilter,
    ChannelOrPattern,
    Heartbeat,
    Keys,
    LogCursor,
    Ticket,
    Types,
    Unused,
)
from app.http.request import Request
from app.message.selection import read_selection
from app.message.times import parse_since
from subscriptions.domain.errors import Code, GaplessError, invalid
from subscriptions.domain.model import MAX_ID
from subscriptions.domain.selection import MAX_CHANNELS, Selection
from subscriptions.engine.live.starts import After, Earliest, Last, Latest, Since, Start

_NUMBER: Final = re.compile(r"[0-9]{1,16}", re.ASCII)


class SubscribeQuery(msgspec.Struct, kw_only=True):
    """What a live subscription reads, and from where."""

    channel: Annotated[
        list[ChannelOrPattern],
        Meta(
            min_length=1,
            max_length=MAX_CHANNELS,
            description="Channels or patterns.",
            examples=[["orders.*"]],
        ),
    ]
    after: LogCursor | UnsetType = UNSET
    last: (
        Annotated[int, Meta(ge=1, le=MAX_LAST, description="This many of each channel's newest.")] | UnsetType
    ) = UNSET
    since: parameters.Since | UnsetType = UNSET
    start: (
        Annotated[Literal["earliest", "latest"], Meta(description="The oldest message kept, or the next.")]
        | UnsetType
    ) = msgspec.field(name="from", default=UNSET)
    type: Types = []
    key: Keys = []
    changes: ChangesFilter = "all"
    heartbeat: Heartbeat = 15
    presence: Annotated[bool, Meta(description="Whether joins and leaves are told.")] = True
    markers: Annotated[bool, Meta(description="Whether markers that move are told.")] = False
    last_event_id: (
        Annotated[LogCursor, Meta(description="As the header of that name, which overrides it.")] | UnsetType
    ) = msgspec.field(name="lastEventId", default=UNSET)
    ticket: Ticket = ""
    unused: Unused = msgspec.field(name="_", default="")


def read_query(request: Request[SubscribeQuery]) -> tuple[Selection, Start]:
    """The selection and the start. Raises `invalid_request` (400 for a malformed cursor) and `forbidden`."""
    given = request.query
    selection = read_selection(
        request.principal, given.channel, given.type, given.key, given.changes, markers=given.markers
    )
    return selection, _start(given, request.headers.getlist("last-event-id"))


def _start(given: SubscribeQuery, headers: list[str]) -> Start:
    """The start. A browser reconnects with its first query, and with the last id that it got: in a header, or
    as polyfills do, in a parameter. The header overrides that parameter, and both override the rest."""
    options = {
        "after": given.after,
        "last": given.last,
        "since": given.since,
        "from": given.start,
    }
    start = chosen_start(options)
    if len(headers) > 1:
        raise _bad_header("is there more than once")
    if header := "".join(headers):
        if not _NUMBER.fullmatch(header) or int(header) > MAX_ID:
            raise _bad_header("is not a cursor of this log")
        return After(int(header))
    return start if given.last_event_id is UNSET else After(given.last_event_id)


def chosen_start(options: Mapping[str, Any], where: str = "") -> Start:
    """The start that one of `after`, `last`, `since` and `from` says; without one, with the next message.

    Values are checked already, but for the time. `where` goes before the name of a field in errors. Raises
    `invalid_request`, also if there are several.
    """
    chosen = {name: value for name, value in options.items() if value is not UNSET}
    if len(chosen) > 1:
        raise invalid(" and ".join(where + name for name in chosen), "only one of them says where to start")
    for name, value in chosen.items():
        return _from_option(name, value, where)
    return Latest()


def _bad_header(why: str) -> GaplessError:
    return GaplessError(Code.INVALID_REQUEST, f"Last-Event-ID: {why}", status=400)


def _from_option(name: str, value: Any, where: str) -> Start:
    match name:
        case "after":
            return After(value)
        case "last":
            return Last(value)
        case "since":
            return Since(parse_since(value, datetime.now(UTC), f"{where}since"))
        case _:
            return Earliest() if value == "earliest" else Latest()
