"""The resolution of figures: bins of histograms, and periods of time axes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

# Seconds. Each edge begins a bin; the last bin has no end.
DURATION_EDGES_S = (0, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400)
COUNT_EDGES = (1, 2, 3, 4, 5, 6, 8, 11, 16, 21, 31, 51, 101, 201, 501)
WORD_EDGES = (0, 1, 2, 3, 4, 6, 9, 13, 18, 26, 41, 61, 101, 201, 501)

# An axis with more points takes the next longer period.
MAX_POINTS = 400
_PERIOD_S = {"hour": 3600, "day": 86400, "week": 7 * 86400, "month": 30 * 86400}


def period_for(first: datetime, last: datetime) -> str:
    """The shortest of hour, day, week, month, year that gives at most MAX_POINTS points."""
    span_s = (last - first).total_seconds()
    return next((unit for unit, width in _PERIOD_S.items() if span_s / width < MAX_POINTS), "year")


def up_to(edges: Sequence[int], end: float) -> tuple[int, ...]:
    """The edges below `end`, the highest value; at least one edge."""
    return tuple(edge for edge in edges if edge < end) or tuple(edges[:1])


def span_label(seconds: float) -> str:
    """A duration with two significant digits, for axes and tables: `90` becomes `1.5 min`."""
    for width, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= width:
            return f"{_short(seconds / width)} {unit}"
    return f"{_short(seconds)} s"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def span_labels(edges: Sequence[int], end: float | None = None) -> list[str]:
    """Labels for bins of durations in seconds, such as `1–2 s` or `30 s – 1 min`; `end` closes the last
    bin."""
    labels = []
    for i, low in enumerate(edges):
        high = edges[i + 1] if i + 1 < len(edges) else end
        if high is None:
            labels.append(f"{span_label(low)} or more")
            continue
        (first, unit), (last, last_unit) = span_label(low).split(" "), span_label(high).split(" ")
        if low == 0:
            labels.append(f"under {last} {last_unit}")
        elif unit == last_unit:
            labels.append(f"{first}–{last} {unit}")
        else:
            labels.append(f"{first} {unit} – {last} {last_unit}")
    return labels


def count_labels(edges: Sequence[int]) -> list[str]:
    """Labels for bins of whole numbers."""
    labels = []
    for i, low in enumerate(edges):
        if i + 1 == len(edges):
            labels.append(f"{low:,} or more")
        else:
            high = edges[i + 1] - 1
            labels.append(f"{low:,}" if high == low else f"{low:,}–{high:,}")
    return labels


def filled(found: dict[int, int], bins: int) -> list[int]:
    """The counts of all bins; 0 for a bin that is not in `found`."""
    return [found.get(i, 0) for i in range(bins)]
