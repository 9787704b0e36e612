"""What a run found, small enough to be drawn: everything the page needs, and nothing of Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gapless_spark.analyze.delivery import Delivery
from gapless_spark.analyze.question import Question

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Read:
    """What was read: `totals` as `volume.totals` gives them, `without_time` the messages left out because no
    time could be read in them, `period` the unit of the time axes."""

    totals: Row
    without_time: int
    period: str


@dataclass(frozen=True, slots=True)
class Volume:
    """Rows of `volume.py`. `periods` has the channels of `busiest`, and None for all others together; the
    names in `hours_of_day` are among `channels`."""

    busiest: list[str]
    periods: list[Row]
    hours_of_day: list[Row]
    week: list[Row]
    channels: list[Row]


@dataclass(frozen=True, slots=True)
class Senders:
    """`active` are senders a `unit`, or the highest of them within each `peak_of` if there are too many."""

    unit: str
    peak_of: str | None
    active: list[Row]
    top: list[Row]


@dataclass(frozen=True, slots=True)
class Spread:
    """Figures of one kind, and how many values lie in each bin that begins at an edge."""

    figures: Row
    edges: tuple[int, ...]
    bins: list[int]


@dataclass(frozen=True, slots=True)
class Findings:
    """A whole run. Parts are None where there is nothing to tell: an empty log, no sender, no text."""

    question: Question
    read_from: str
    written_at: datetime
    read: Read
    volume: Volume | None = None
    senders: Senders | None = None
    session_lengths: Spread | None = None
    session_sizes: Spread | None = None
    replies: Spread | None = None
    words: Spread | None = None
    rates: list[Row] = field(default_factory=list)
    peaks: list[Row] = field(default_factory=list)
    delivery: Delivery | None = None
    delivery_absent: str | None = None
