"""Times: as they are sent, RFC 3339 in UTC with microseconds, and as they are read, RFC 3339 or an age."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from subscriptions.domain.errors import invalid

MAX_MOMENT_CHARACTERS: Final = 64
"""More than any form of a time has."""
SINCE_PATTERN: Final = r"^(\d{1,9}[smhd]|\d{4}-\d\d-\d\d[Tt].*)$"
"""Approximately the accepted form, for documents."""

_AGO: Final = re.compile(r"(\d{1,9})([smhd])", re.ASCII)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_RULE: Final = "must be RFC 3339 with a time zone, or how long ago: 30s, 10m, 2h, 1d"
_RFC3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def rfc3339(at_us: int) -> bytes:
    """Microseconds since the Unix epoch as text: `2026-11-20T12:00:00.123456Z`."""
    seconds, microseconds = divmod(at_us, 1_000_000)
    return b"%b.%06dZ" % (_to_the_second(seconds), microseconds)


@lru_cache(maxsize=4096)
def _to_the_second(seconds: int) -> bytes:
    # Messages written or read together share their second, so nearly every call hits this cache.
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()


def parse_since(text: str, now: datetime, field: str = "since") -> datetime:
    """An aware time in UTC. Raises `invalid_request` about `field`."""
    try:
        if ago := _AGO.fullmatch(text):
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        # A plus sign that was not escaped in a query arrives as a space.
        if len(text) > 6 and text[-6] == " ":
            text = f"{text[:-6]}+{text[-5:]}"
        if _RFC3339.fullmatch(text):
            return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise invalid(field, _RULE)
