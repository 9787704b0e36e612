"""Parses the times and spans of options."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from gapless_spark.errors import BadOption

_SPAN = re.compile(r"(\d{1,9})(ms|s|m|h|d)?")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}


def parse_span(text: str, option: str) -> float:
    """The seconds of a span: `30m`, `2h`, `1d`, `90s`, `250ms` or a number of seconds. Raises `BadOption`."""
    found = _SPAN.fullmatch(text.strip())
    if not found or int(found[1]) == 0:
        raise BadOption(f"{option} is {text!r}; give a span such as 30m, 2h or 1d.")
    return int(found[1]) * _UNIT_S[found[2]]


def is_age(text: str) -> bool:
    """Whether a time is given as a span before now, so that its meaning changes with each run."""
    return _SPAN.fullmatch(text.strip()) is not None and not text.strip().isdigit()


def parse_time(text: str | None, option: str, now: datetime) -> datetime | None:
    """The time of an ISO 8601 text (UTC if it has no zone), a date, or a span before `now` such as `7d`.
    Raises `BadOption`."""
    if text is None:
        return None
    if is_age(text):
        return now - timedelta(seconds=parse_span(text, option))
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadOption(f"{option} is {text!r}; give a time such as 2026-11-20T12:00:00Z, or 7d.") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
