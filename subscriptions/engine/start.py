"""Where a live subscription begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class After:
    """After this id."""

    cursor: int


@dataclass(frozen=True, slots=True)
class Latest:
    """With the first message committed after this call."""


@dataclass(frozen=True, slots=True)
class Earliest:
    """With the oldest message kept."""


@dataclass(frozen=True, slots=True)
class Last:
    """With the newest `count` messages of each channel."""

    count: int


@dataclass(frozen=True, slots=True)
class Since:
    """With the first message not older than this time (aware)."""

    time: datetime


@dataclass(frozen=True, slots=True)
class Carried:
    """A cursor above the id that is settled, which may come from a reader of other channels. What was there
    when the reader came, up to `heads` in each channel, lies before the cursor; what is committed up to it
    later does not."""

    cursor: int
    settled: int
    heads: Mapping[str, int]

    def is_before(self, channel: str, id_: int) -> bool:
        """Whether this message lies before the cursor."""
        return id_ <= min(self.cursor, self.heads.get(channel, 0))


Start = After | Latest | Earliest | Last | Since
