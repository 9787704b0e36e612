"""The results of a run: everything that the page needs, small and without Spark's types."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gapless_spark.analyze.delivery import Delivery
from gapless_spark.analyze.question import Question

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Read:
    """The messages that were read. `totals`: the row of `volume.totals`. `without_time`: how many messages
    were left out because their time could not be read. `period`: the unit of the time axes."""

    totals: Row
    without_time: int
    period: str


@dataclass(frozen=True, slots=True)
class Volume:
    """Rows of `volume.py`. `periods` has the channels of `busiest`, and None for all others together.
    `hours_of_day` has only names that are in `channels`."""

    busiest: list[str]
    periods: list[Row]
    hours_of_day: list[Row]
    week: list[Row]
    channels: list[Row]


@dataclass(frozen=True, slots=True)
class Senders:
    """`active`: senders per `unit`; with `peak_of`, the highest number in each of these longer periods."""

    unit: str
    peak_of: str | None
    active: list[Row]
    top: list[Row]


@dataclass(frozen=True, slots=True)
class Spread:
    """Statistics of some values, and a histogram: the number of values in each bin, which begins at an
    edge."""

    figures: Row
    edges: tuple[int, ...]
    bins: list[int]


@dataclass(frozen=True, slots=True)
class Findings:
    """All results of a run. A part is None if there is no data for it: an empty log, no senders, no text."""

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
