"""The starts of a live subscription: where it can begin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from subscriptions.domain.channel_epoch import ChannelEpoch


@dataclass(frozen=True, slots=True)
class After:
    """Begin after this id."""

    cursor: int


@dataclass(frozen=True, slots=True)
class AfterSeq:
    """Begin after this seq of one channel. `epoch` is a `ChannelEpoch` as text; empty: the channel that has
    the name now."""

    seq: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Opened:
    """Where a reader began: after the message `seq` of the channel named by `epoch`; of several channels,
    after that id. `holds`: that is where it wanted to go on. If not, messages that it wants are gone, or its
    position was none of this channel."""

    epoch: ChannelEpoch
    seq: int
    holds: bool = True


@dataclass(frozen=True, slots=True)
class Latest:
    """Begin with the first message committed after this call."""


@dataclass(frozen=True, slots=True)
class Earliest:
    """Begin with the oldest message kept."""


@dataclass(frozen=True, slots=True)
class Last:
    """Begin with the newest `count` messages of each channel."""

    count: int


@dataclass(frozen=True, slots=True)
class Since:
    """Begin with the first message not older than this time (with a time zone)."""

    time: datetime


@dataclass(frozen=True, slots=True)
class Carried:
    """A cursor above the settled id. It may come from a reader of other channels. Messages that existed when
    the reader came, up to `heads` in each channel, lie before the cursor. Messages at or below the cursor
    that are committed later do not: they are delivered."""

    cursor: int
    settled: int
    heads: Mapping[str, int]

    def is_before(self, channel: str, id_: int) -> bool:
        """Whether this message lies before the cursor."""
        return id_ <= min(self.cursor, self.heads.get(channel, 0))


Start = After | AfterSeq | Latest | Earliest | Last | Since
