"""Plots as plain data: traces and layout for plotly.js, without colours. Each trace has a `tone`, a number of
the palette, `rest` or `heat`, which the page's script turns into a colour of the theme."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from gapless_spark.analyze.delivery import AGE_EDGES_S, Delivery
from gapless_spark.analyze.findings import Row, Senders, Volume
from gapless_spark.analyze.text import plotted

Figure = dict[str, Any]

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
HOURS = [f"{hour:02}" for hour in range(24)]
AGE_LABELS = ("under 1 h", "1 h – 1 d", "1 – 7 d", "7 – 30 d", "over 30 d")
REASONS = ("rejected", "expired", "max_deliver", "max_backlog", "hops")
MAX_BARS = 20
_LABEL = 28
FEW = 5
"""Up to this height, an axis has a tick for each whole number."""
MANY = 10_000
"""From this height on, an axis shows thousands as `k`."""


def volume(found: Volume, period: str) -> Figure:
    """Stacked bars: messages per period, of the busiest channels and of all others."""
    starts = sorted({row["period"] for row in found.periods})
    counts = {(row["period"], row["channel"]): row["messages"] for row in found.periods}
    traces = []
    tones: list[tuple[int | str, str | None]] = [*enumerate(found.busiest), ("rest", None)]
    for tone, channel in tones:
        heights = [counts.get((start, channel), 0) for start in starts]
        if any(heights):
            name = "all others" if channel is None else plotted(channel, _LABEL)
            hover = "%{y:,} messages<extra>" + name + "</extra>"
            traces.append(_bars([_wall(start) for start in starts], heights, tone, name, hover))
    layout = {
        "barmode": "stack",
        "bargap": 0.08,
        "hovermode": "x unified",
        "showlegend": True,
        "xaxis": _times(f"{period} beginning", starts),
        "yaxis": _counts(f"messages per {period}", traces),
    }
    return {"traces": traces, "layout": layout, "height": 380}


def week(rows: Sequence[Row]) -> Figure:
    """A heat map of messages by weekday and hour."""
    counts = {(row["weekday"], row["hour"]): row["messages"] for row in rows}
    z = [[counts.get((day, hour), 0) for hour in range(24)] for day in range(7)]
    hover = "%{y} %{x}:00<br>%{z:,} messages<extra></extra>"
    return _heat(HOURS, WEEKDAYS, z, hover, "messages", height=300)


def hours_of_day(found: Volume) -> Figure:
    """A heat map of channels by hour of the day. It shows shares of a channel's messages, so that quiet
    channels are visible beside busy ones."""
    counts: dict[str, list[int]] = {}
    for row in found.hours_of_day:
        counts.setdefault(row["channel"], [0] * 24)[row["hour"]] = row["messages"]
    channels = [row["channel"] for row in found.channels if row["channel"] in counts]
    z = [[100 * n / sum(counts[channel]) for n in counts[channel]] for channel in channels]
    hover = "%{y} at %{x}:00<br>%{z:.1f} % of its messages<extra></extra>"
    height = 110 + 24 * len(channels)
    return _heat(HOURS, _unique(channels), z, hover, "% of the channel", height)


def active(found: Senders) -> Figure:
    """Bars of distinct senders over time. A line would bridge silent times."""
    of = f"busiest day of the {found.peak_of}" if found.peak_of else found.unit
    trace = _bars(
        [_wall(row["period"]) for row in found.active],
        [row["senders"] for row in found.active],
        0,
        "",
        "%{x}<br>%{y:,} senders<extra></extra>",
    )
    layout = {
        "bargap": 0.08,
        "xaxis": _times(f"{found.peak_of or found.unit} beginning", found.active),
        "yaxis": _counts(f"senders, {of}", [trace]),
    }
    return {"traces": [trace], "layout": layout, "height": 320}


def histogram(labels: Sequence[str], heights: Sequence[int], title: str, count: str, tone: int) -> Figure:
    """Bars for bins of different widths: heights are counts, not densities. Empty bins at the ends are left
    out."""
    first = next((i for i, n in enumerate(heights) if n), 0)
    last = len(heights) - next((i for i, n in enumerate(reversed(heights)) if n), 0)
    total = sum(heights) or 1
    hover = "%{x}<br>%{y:,} (%{customdata:.1f} %)<extra></extra>"
    trace = _bars(labels[first:last], heights[first:last], tone, "", hover)
    trace["customdata"] = [100 * n / total for n in heights[first:last]]
    layout = {
        "bargap": 0.12,
        "xaxis": _axis(title, type="category", tickangle=-40),
        "yaxis": _counts(count, [trace]),
    }
    return {"traces": [trace], "layout": layout, "height": 320}


def peaks(rows: Sequence[Row], period: str) -> Figure:
    """Bars with the busiest minute of each period."""
    trace = _bars(
        [_wall(row["period"]) for row in rows],
        [row["messages"] for row in rows],
        2,
        "",
        "%{x}<br>%{y:,} messages in its busiest minute<extra></extra>",
    )
    layout = {
        "bargap": 0.08,
        "xaxis": _times(f"{period} beginning", rows),
        "yaxis": _counts("messages per minute, at most", [trace]),
    }
    return {"traces": [trace], "layout": layout, "height": 300}


def dead_letters(found: Delivery) -> Figure:
    """Bars of dead letters by reason, stacked by age."""
    counts: dict[tuple[str, int], int] = {}
    for row in found.dead_letters:
        place = (row["reason"], row["age"])
        counts[place] = counts.get(place, 0) + row["dead_letters"]
    reasons = [reason for reason in REASONS if any(reason == r for r, _ in counts)]
    traces = []
    for age, name in enumerate(AGE_LABELS[: len(AGE_EDGES_S)]):
        widths = [counts.get((reason, age), 0) for reason in reasons]
        if any(widths):
            hover = "%{y}: %{x:,}<extra>" + name + "</extra>"
            # One colour, stronger for older ones.
            bars = _bars(reasons, widths, 4, name, hover, sideways=True)
            traces.append(bars | {"opacity": 0.28 + 0.18 * age})
    layout = {
        "barmode": "stack",
        "showlegend": True,
        "xaxis": _counts("dead letters", traces),
        "yaxis": _axis("reason", type="category", autorange="reversed"),
    }
    return {"traces": traces, "layout": layout, "height": 150 + 36 * len(reasons)}


def lag(found: Delivery) -> Figure:
    """Bars of the lag of subscriptions, the largest first."""
    rows = found.subscriptions[:MAX_BARS]
    names = _unique([row["subscription"] for row in rows])
    traces = [
        _bars(
            names,
            [row["lag"] for row in rows],
            0,
            "lag",
            "%{y}: %{x:,} waiting<extra></extra>",
            sideways=True,
        ),
        _bars(
            names,
            [row["in_flight"] for row in rows],
            2,
            "in flight",
            "%{y}: %{x:,} in flight<extra></extra>",
            sideways=True,
        ),
    ]
    layout = {
        "barmode": "stack",
        "showlegend": True,
        "xaxis": _counts("messages", traces),
        "yaxis": _axis("subscription", type="category", autorange="reversed"),
    }
    return {"traces": traces, "layout": layout, "height": 150 + 26 * len(rows)}


def attempts(found: Delivery) -> Figure:
    """Bars of delivery attempts: of outstanding messages, and of dead letters."""
    totals: dict[tuple[str, int], int] = {}
    for row in found.attempts:
        place = (row["state"], row["attempts"])
        totals[place] = totals.get(place, 0) + row["messages"]
    numbers = sorted({n for _, n in totals})[:MAX_BARS]
    traces = []
    for tone, state in enumerate(("in flight", "queued", "dead letter")):
        heights = [totals.get((state, n), 0) for n in numbers]
        if any(heights):
            hover = "%{x} attempts: %{y:,}<extra>" + state + "</extra>"
            traces.append(_bars([str(n) for n in numbers], heights, (0, 2, 4)[tone], state, hover))
    layout = {
        "barmode": "stack",
        "showlegend": True,
        "xaxis": _axis("attempts", type="category"),
        "yaxis": _counts("messages", traces),
    }
    return {"traces": traces, "layout": layout, "height": 300}


def _bars(
    places: Sequence[str],
    lengths: Sequence[int],
    tone: int | str,
    name: str,
    hover: str,
    sideways: bool = False,
) -> Figure:
    across, along = ("y", "x") if sideways else ("x", "y")
    return {
        "type": "bar",
        "orientation": "h" if sideways else "v",
        across: list(places),
        along: list(lengths),
        "name": name,
        "tone": tone,
        "hovertemplate": hover,
    }


def _heat(
    x: Sequence[str], y: Sequence[str], z: Sequence[Sequence[float]], hover: str, unit: str, height: int
) -> Figure:
    trace = {
        "type": "heatmap",
        "x": list(x),
        "y": list(y),
        "z": z,
        "zmin": 0,
        "xgap": 1.5,
        "ygap": 1.5,
        "tone": "heat",
        "hovertemplate": hover,
        "colorbar": {
            "title": {"text": unit, "side": "right"},
            "thickness": 12,
            "outlinewidth": 0,
            "tickformat": "~s",
        },
    }
    layout = {
        "xaxis": _axis("hour of the day", type="category", ticks=""),
        "yaxis": _axis("", type="category", autorange="reversed", ticks=""),
    }
    return {"traces": [trace], "layout": layout, "height": height}


def _axis(title: str, **more: object) -> Figure:
    return {"title": {"text": title}, "automargin": True, **more}


def _times(title: str, places: Sequence[object]) -> Figure:
    """An axis of times. A single time is shown as text, because plotly would show its milliseconds."""
    return _axis(title, type="date" if len(places) > 1 else "category")


def _counts(title: str, traces: Sequence[Figure]) -> Figure:
    """An axis of whole numbers from 0, without fractions, and with thousands as `k` if they are large."""
    heights: dict[object, int] = {}
    for trace in traces:
        along, across = ("x", "y") if trace["orientation"] == "h" else ("y", "x")
        for place, height in zip(trace[across], trace[along], strict=True):
            heights[place] = heights.get(place, 0) + height
    most = max(heights.values(), default=0)
    few = {"dtick": 1} if most <= FEW else {}
    return _axis(title, rangemode="tozero", tickformat="~s" if most >= MANY else ",", **few)


def _unique(names: Sequence[str]) -> list[str]:
    """Labels of an axis. Names that are equal once they are shortened get numbers, or plotly would merge
    them."""
    seen: dict[str, int] = {}
    labels = []
    for name in names:
        label = plotted(name, _LABEL)
        seen[label] = seen.get(label, 0) + 1
        labels.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return labels


def _wall(at: datetime) -> str:
    """A time as text in the report's time zone, which the axis then shows in a browser of any time zone."""
    return f"{at:%Y-%m-%d %H:%M}"
