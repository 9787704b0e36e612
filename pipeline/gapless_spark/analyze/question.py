"""What is asked of a log: which part of it, where in a message things lie, and the bounds of the
definitions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from zoneinfo import ZoneInfo

from gapless_spark.errors import BadOption

LIVE = "live"

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
