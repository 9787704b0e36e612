"""What a live subscription asks for, read from its query and headers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import parse_qsl

from starlette.types import Scope

from app.wire.checks import check_key, check_type
from app.wire.moments import parse_since
from subscriptions.domain.errors import Code, GaplessError, invalid
from subscriptions.domain.model import MAX_ID
from subscriptions.domain.pattern import check_budget, check_pattern, is_pattern
from subscriptions.domain.selection import Selection, select
from subscriptions.engine.start import After, Earliest, Last, Latest, Since, Start

MAX_CHANNELS: Final = 128
MAX_LAST: Final = 1000
MAX_FILTERS: Final = 128
DEFAULT_HEARTBEAT_S: Final = 15.0

_CLOUDEVENTS: Final = "application/cloudevents+json"
_OFFERED: Final = frozenset({"text/event-stream", "text/*", "*/*", _CLOUDEVENTS})
_NUMBER: Final = re.compile(r"[0-9]{1,16}", re.ASCII)
_KNOWN: Final = frozenset(
    {"channel", "after", "last", "since", "from", "type", "key", "heartbeat", "lastEventId", "ticket", "_"}
)


@dataclass(frozen=True, slots=True)
class StreamQuery:
    """`cloudevents`: messages in that form. `heartbeat_s` in seconds."""

    selection: Selection
    start: Start
    heartbeat_s: float
    cloudevents: bool


def read_query(scope: Scope, namespace: str) -> StreamQuery:
    """Raises `invalid_request` (400 for a malformed cursor) and `not_acceptable`."""
    headers = dict(scope["headers"])
    cloudevents = accepts(headers.get(b"accept", b"").decode("latin-1"))
    given = parameters(scope["query_string"], _KNOWN, "subscribe")
    channels = given.get("channel", [])
    if not channels:
        raise invalid("channel", "name at least one channel or pattern")
    if len(channels) > MAX_CHANNELS:
        raise invalid("channel", f"at most {MAX_CHANNELS} channels and patterns")
    for text in channels:
        check_pattern(text)
    check_budget(channels, "channel")
    selection = select(
        namespace,
        [text for text in channels if not is_pattern(text)],
        [text for text in channels if is_pattern(text)],
        [check_type(text) for text in _few(given, "type")],
        [check_key(text) for text in _few(given, "key")],
    )
    return StreamQuery(selection, _start(given, headers), heartbeat(given), cloudevents)


def parameters(query: bytes, known: frozenset[str], face: str) -> dict[str, list[str]]:
    """The parameters of a query, each with all its values. Raises `invalid_request` for an unknown one."""
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=1000)
    except (UnicodeDecodeError, ValueError):
        raise GaplessError(Code.INVALID_REQUEST, "the query is not valid", status=400) from None
    given: dict[str, list[str]] = {}
    for name, value in pairs:
        if name not in known:
            raise invalid(name, f"is not a parameter of {face}")
        given.setdefault(name, []).append(value)
    return given


def _few(given: dict[str, list[str]], name: str) -> list[str]:
    values = given.get(name, [])
    if len(values) > MAX_FILTERS:
        raise invalid(name, f"at most {MAX_FILTERS} of these")
    return values


def one(given: dict[str, list[str]], name: str) -> str | None:
    """The value of a parameter that may be given once."""
    values = given.get(name, [])
    if len(values) > 1:
        raise invalid(name, "was given more than once")
    return values[0] if values else None


def _start(given: dict[str, list[str]], headers: dict[bytes, bytes]) -> Start:
    """The header wins: a browser reconnects with the query it began with and the header of where it is."""
    options = {name: one(given, name) for name in ("after", "last", "since", "from", "lastEventId")}
    chosen = {name: value for name, value in options.items() if value is not None}
    if len(chosen) > 1:
        raise invalid(" and ".join(chosen), "only one of them says where to start")
    start = _from_option(*next(iter(chosen.items()))) if chosen else Latest()
    header = headers.get(b"last-event-id", b"").decode("latin-1")
    return _cursor("Last-Event-ID", header) if header else start


def _from_option(name: str, value: str) -> Start:
    if name in ("after", "lastEventId"):
        return _cursor(name, value)
    if name == "last":
        if not _NUMBER.fullmatch(value) or not 1 <= int(value) <= MAX_LAST:
            raise invalid("last", f"must be a number from 1 to {MAX_LAST}")
        return Last(int(value))
    if name == "since":
        return Since(parse_since(value, datetime.now(UTC)))
    if value == "earliest":
        return Earliest()
    if value == "latest":
        return Latest()
    raise invalid("from", "must be earliest or latest")


def _cursor(name: str, value: str) -> After:
    if not _NUMBER.fullmatch(value) or int(value) > MAX_ID:
        raise GaplessError(Code.INVALID_REQUEST, f"{name}: is not a cursor of this log", status=400)
    return After(int(value))


def number(name: str, value: str, least: int, most: int) -> int:
    """The value of a parameter that is a whole number."""
    if not _NUMBER.fullmatch(value) or not least <= int(value) <= most:
        raise invalid(name, f"must be a number from {least} to {most}")
    return int(value)


def heartbeat(given: dict[str, list[str]]) -> float:
    """Seconds of silence after which something is sent."""
    value = one(given, "heartbeat")
    if value is None:
        return DEFAULT_HEARTBEAT_S
    if not _NUMBER.fullmatch(value) or not 5 <= int(value) <= 60:
        raise invalid("heartbeat", "must be a number of seconds from 5 to 60")
    return float(value)


def accepts(accept: str) -> bool:
    """Whether the client wants CloudEvents. Raises `not_acceptable` where it takes no event stream."""
    ranges = [part.split(";")[0].strip().lower() for part in accept.split(",") if part.strip()]
    if ranges and not _OFFERED.intersection(ranges):
        raise GaplessError(Code.NOT_ACCEPTABLE, "this is text/event-stream and nothing else")
    return _CLOUDEVENTS in ranges
