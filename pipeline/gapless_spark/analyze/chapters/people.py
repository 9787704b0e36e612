"""Chapters about senders: active senders, sessions, replies and words."""

from __future__ import annotations

import html

from gapless_spark.analyze import bins, figures
from gapless_spark.analyze.findings import Findings, Spread
from gapless_spark.analyze.markup import card, counted, facts, named, numbers, pair, shown, table
from gapless_spark.analyze.plots import Plots
from gapless_spark.analyze.text import many, moment, number, span

SENDER_COLUMNS = [
    named("sender", "sender"),
    counted("messages", "messages", bar=True),
    counted("channels", "channels"),
    counted("words per message", "words_per_message", 1),
    shown("first", "first_at", moment),
    shown("last", "last_at", moment),
]


def senders(found: Findings, plots: Plots) -> str:
    """Active senders over time, and those with most messages."""
    assert found.senders is not None
    rows = found.senders
    note = f"Distinct senders of each {rows.unit}"
    if rows.peak_of:
        note += f", the busiest {rows.unit} of each {rows.peak_of}; all are in the table "
        note += f"active_senders_by_{rows.unit}"
    over_time = card(
        "Active senders",
        f"{note}.",
        plots.put("active", "Active senders over time", figures.active(rows)),
        numbers(
            rows.active, [shown(rows.peak_of or rows.unit, "period", moment), counted("senders", "senders")]
        ),
    )
    return over_time + card(
        f"Top {many(len(rows.top), 'sender')}", "By messages.", table(rows.top, SENDER_COLUMNS)
    )


def sessions(found: Findings, plots: Plots) -> str:
    """The lengths of sessions, and their numbers of messages."""
    lengths, sizes = found.session_lengths, found.session_sizes
    assert lengths is not None
    assert sizes is not None
    figure = lengths.figures
    note = (
        "A session is a run of one sender's messages, in any channels, with at most "
        f"{bins.span_label(found.question.session_gap_s)} from each to the next. It lasts from its first "
        "message to its last, so a session of one message lasts 0 s."
    )
    overview = facts(
        [
            (number(figure["sessions"]), "sessions"),
            (span(figure["seconds_p50"]), "median length"),
            (span(figure["seconds_p95"]), "95th percentile of lengths"),
            (number(figure["messages_mean"], 1), "messages per session, mean"),
            (f"{100 * figure['single'] / figure['sessions']:.0f} %", "have one message only"),
        ]
    )
    return f'<p class="note">{html.escape(note)}</p>{overview}' + pair(
        plots.durations("session-lengths", "Length of sessions", "sessions", lengths),
        plots.counts("session-sizes", "Messages of a session", "messages", "sessions", sizes),
    )


def conversation(found: Findings, plots: Plots) -> str:
    """Replies and words."""
    parts = []
    if found.replies:
        parts.append(_replies(found.replies, found.question.reply_within_s, plots))
    if found.words:
        figure = found.words.figures
        note = (
            f"Words are runs of characters other than white space. {many(figure['words'], 'word')} in "
            f"{many(figure['messages'], 'message')}: mean {number(figure['mean'], 1)}, median "
            f"{number(figure['words_p50'])}, 95th percentile {number(figure['words_p95'])}, longest "
            f"{number(figure['longest'])}."
        )
        parts.append(plots.counts("words", "Words per message", "words", "messages", found.words, note))
    if not parts:
        return card("No data", "The messages have no text, and there are no replies.")
    return pair(*parts)


def _replies(found: Spread, within_s: float, plots: Plots) -> str:
    figure = found.figures
    share = 100 * figure["answered"] / figure["messages"]
    note = (
        "From a message to the next one of another sender in the same channel, if it came within "
        f"{bins.span_label(within_s)}. {share:.0f} % of {many(figure['messages'], 'message')} got such a "
        f"reply: half within {span(figure['seconds_p50'])}, 90 % within {span(figure['seconds_p90'])}, "
        f"95 % within {span(figure['seconds_p95'])}, 99 % within {span(figure['seconds_p99'])}."
    )
    return plots.durations("replies", "Time to a reply", "messages", found, note, end=within_s)
