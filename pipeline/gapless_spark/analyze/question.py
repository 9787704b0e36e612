"""What is asked of a log: which part of it, where in a message things lie, and the bounds of the
definitions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from gapless_spark.errors import BadOption

LIVE = "live"

_SPAN = re.compile(r"(\d{1,9})(ms|s|m|h|d)?")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}
# What Spark's JSON paths can name inside quotes; dots separate members.
_MEMBER = re.compile(r"[^'\"\[\]?*.\s$\\][^'\"\[\]?*.\\]*")


@dataclass(frozen=True, slots=True)
class Fields:
    """Where in `data` the text, and in place of the message's own members the sender and the time, are found.

    Each is a JSON path of members joined by dots (`fromUser.username`), or None.
    """

    text: str | None = "text"
    sender: str | None = None
    time: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """One run of the analysis: `source` is a folder or `live`; times are aware, spans in seconds."""

    source: str = LIVE
    url: str | None = field(default=None, repr=False)
    namespace: str = "default"
    channels: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    fields: Fields = field(default_factory=Fields)
    session_gap_s: float = 1800.0
    reply_within_s: float = 3600.0
    timezone: str = "UTC"
    top: int = 20

    @property
    def live(self) -> bool:
        return self.source == LIVE


def parse_span(text: str, option: str) -> float:
    """Seconds of `30m`, `2h`, `1d`, `90s`, `250ms` or a plain number of seconds. BadOption where it is
    none."""
    found = _SPAN.fullmatch(text.strip())
    if not found or int(found[1]) == 0:
        raise BadOption(f"{option} is {text!r}; give a span such as 30m, 2h or 1d.")
    return int(found[1]) * _UNIT_S[found[2]]


def is_age(text: str) -> bool:
    """Whether a time is given as a span before now: it means another moment each time it is given."""
    return _SPAN.fullmatch(text.strip()) is not None and not text.strip().isdigit()


def parse_time(text: str | None, option: str, now: datetime) -> datetime | None:
    """A moment: ISO 8601 (UTC where no zone is given), a date, or a span before `now` such as `7d`."""
    if text is None:
        return None
    if is_age(text):
        return now - timedelta(seconds=parse_span(text, option))
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadOption(f"{option} is {text!r}; give a time such as 2026-11-20T12:00:00Z, or 7d.") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def parse_zone(name: str) -> str:
    """A time zone that the tz database knows. BadOption where it does not."""
    try:
        ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise BadOption(f"--timezone is {name!r}; give a name such as UTC or Europe/Berlin.") from None
    return name


def json_path(members: str, option: str) -> str:
    """Spark's JSON path of members joined by dots. BadOption where a member cannot be named in one."""
    parts = members.split(".")
    if not all(_MEMBER.fullmatch(part) for part in parts):
        raise BadOption(f"{option} is {members!r}; give members joined by dots, such as fromUser.username.")
    return "$" + "".join(f"['{part}']" for part in parts)
