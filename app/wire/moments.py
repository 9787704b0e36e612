"""Reads times: RFC 3339, or an age."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
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
