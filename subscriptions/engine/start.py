"""Where a live subscription begins."""

from __future__ import annotations

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


Start = After | Latest | Earliest | Last | Since
