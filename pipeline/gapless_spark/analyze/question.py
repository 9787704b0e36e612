"""The question of an analysis: which messages, the fields to read in them, and the limits of sessions and
replies."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from zoneinfo import ZoneInfo

from gapless_spark.errors import BadOption

LIVE = "live"

# The member names that Spark's JSON paths allow inside quotes; dots separate members.
_MEMBER = re.compile(r"[^'\"\[\]?*.\s$\\][^'\"\[\]?*.\\]*")


@dataclass(frozen=True, slots=True)
class Fields:
    """The members of `data` with the text, the sender and the time.

    Each is a path of members joined by dots (`fromUser.username`). None means no text, the message's own
    sender, and `created_at`.
    """

    text: str | None = "text"
    sender: str | None = None
    time: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """The options of one analysis. `source` is a folder or `live`. Times are aware; spans are in seconds."""

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
    """Check a name of a time zone. Raises `BadOption` if the tz database does not have it."""
    try:
        ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise BadOption(f"--timezone is {name!r}; give a name such as UTC or Europe/Berlin.") from None
    return name


def json_path(members: str, option: str) -> str:
    """Spark's JSON path for members joined by dots. Raises `BadOption` if a path cannot have a member."""
    parts = members.split(".")
    if not all(_MEMBER.fullmatch(part) for part in parts):
        raise BadOption(f"{option} is {members!r}; give members joined by dots, such as fromUser.username.")
    return "$" + "".join(f"['{part}']" for part in parts)
