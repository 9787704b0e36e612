"""Chapters about the log: volume and rates."""

from __future__ import annotations

from datetime import datetime

from gapless_spark.analyze import bins, figures
from gapless_spark.analyze.findings import Findings, Row, Volume
from gapless_spark.analyze.markup import card, counted, named, numbers, shown, table
from gapless_spark.analyze.plots import Plots
from gapless_spark.analyze.text import many, moment, number, sized, span

WEEK_COLUMNS = [shown("weekday", "weekday", str), *(counted(hour, hour) for hour in figures.HOURS)]
CHANNEL_COLUMNS = [
    named("channel", "channel"),
    counted("messages", "messages", bar=True),
    counted("senders", "senders"),
    shown("data", "bytes", sized),
    counted("words per message", "words_per_message", 1),
    counted("answered", "answered"),
    shown("median reply", "reply_p50_s", span),
    shown("first", "first_at", moment),
    shown("last", "last_at", moment),
]


def volume(found: Findings, plots: Plots) -> str:
    """Volume over time, by weekday and hour, and by channel."""
    assert found.volume is not None
    rows, zone = found.volume, found.question.timezone
    heated = len({row["channel"] for row in rows.hours_of_day})
    week = card(
        "Busiest hours",
        f"Messages by weekday and hour, {zone}.",
        plots.put("week", "Messages by weekday and hour", figures.week(rows.week)),
        numbers(_by_weekday(rows.week), WEEK_COLUMNS),
    )
    day = card(
        "When channels are busy",
        f"The {many(heated, 'channel')} with most messages: the share of a channel's messages in each hour "
        f"of the day, {zone}.",
        plots.put("day", "Channels by hour of the day", figures.hours_of_day(rows)),
    )
    top = card(
        f"Top {many(len(rows.channels), 'channel')}",
        "Replies are counted as under Conversation.",
        table(rows.channels, CHANNEL_COLUMNS),
    )
    return _over_time(rows, found.read.period, plots) + week + day + top


def rates(found: Findings, plots: Plots) -> str:
    """Percentiles per second, minute and hour, and the busiest minutes."""
    period = found.read.period
    percentiles = card(
        "Messages per second, minute and hour",
        "Percentiles over all seconds (minutes, hours) from the first message to the last, silent ones "
        "included; and over those with a message. If most are silent, the former are 0.",
        table(
            found.rates,
            [
                shown("per", "unit", str),
                shown("mean", "mean", lambda value: number(value, 4 if value < 1 else 2)),
                *(shown(f"p{rank}", f"p{rank}", _few) for rank in (50, 95, 99)),
                *(shown(f"p{rank}, not silent", f"active_p{rank}", _few) for rank in (50, 95, 99)),
                counted("max", "max"),
                shown("reached at", "max_at", lambda at: f"{at:%Y-%m-%d %H:%M:%S}"),
            ],
        ),
    )
    peaks = card(
        f"Busiest minute of each {period}",
        f"The most messages within one minute of each {period}.",
        plots.put("peaks", "Busiest minutes", figures.peaks(found.peaks, period)),
        numbers(found.peaks, [shown(period, "period", moment), counted("messages in a minute", "messages")]),
    )
    return percentiles + peaks


def _over_time(found: Volume, period: str, plots: Plots) -> str:
    sums: dict[datetime, int] = {}
    for row in found.periods:
        sums[row["period"]] = sums.get(row["period"], 0) + row["messages"]
    rows = [{"period": start, "messages": sums[start]} for start in sorted(sums)]
    return card(
        f"Messages per {period}",
        f"The {many(len(found.busiest), 'channel')} with most messages, and all others together. Longer "
        f"spans take longer periods, so that no axis has more than about {bins.MAX_POINTS} points; the table "
        "volume_by_hour has every hour.",
        plots.put("volume", "Messages over time", figures.volume(found, period)),
        numbers(rows, [shown(period, "period", moment), counted("messages", "messages")]),
    )


def _by_weekday(rows: list[Row]) -> list[Row]:
    counts = {(row["weekday"], row["hour"]): row["messages"] for row in rows}
    return [
        {"weekday": name, **{hour: counts.get((day, i), 0) for i, hour in enumerate(figures.HOURS)}}
        for day, name in enumerate(figures.WEEKDAYS)
    ]


def _few(value: float) -> str:
    """A percentile: whole, or with one digit if it lies between two counts."""
    return number(value, 0 if value == int(value) else 1)
