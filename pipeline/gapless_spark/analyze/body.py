"""The body of the page: header, chapters, footer."""

from __future__ import annotations

import html
from collections.abc import Callable

from gapless_spark.analyze.chapters import log, people, queues
from gapless_spark.analyze.findings import Findings
from gapless_spark.analyze.markup import chapter, facts
from gapless_spark.analyze.plots import Plots
from gapless_spark.analyze.text import escaped, many, moment, number, sized, span

EMPTY = (
    '<section class="card empty"><h3>There are no messages</h3><p class="note">Nothing was published yet, '
    "or no message is in the given channels and times, or none has a time in the given field."
    "</p></section>"
)


def body(found: Findings, title: str, plots: Plots) -> str:
    """The body as HTML. Chapters without data are left out."""
    chosen: list[tuple[str, str, Callable[[Findings, Plots], str]]] = []
    if found.volume:
        chosen += [("volume", "Volume", log.volume), ("rates", "Publish rates", log.rates)]
    if found.senders:
        chosen.append(("senders", "Senders", people.senders))
    if found.session_lengths:
        chosen.append(("sessions", "Sessions", people.sessions))
    if found.volume:
        chosen.append(("conversation", "Conversation", people.conversation))
    chosen.append(("delivery", "Delivery", queues.delivery))
    links = "".join(f'<a href="#{anchor}">{name}</a>' for anchor, name, _ in chosen)
    inside = "".join(chapter(anchor, name, write(found, plots)) for anchor, name, write in chosen)
    return (
        f"<header><h1>{escaped(title, 200)}</h1>{_lead(found)}<nav>{links}</nav>"
        f"{_warnings(found)}{_facts(found)}</header>\n"
        f"<main>{'' if found.volume else EMPTY}{inside}</main>\n{_foot(found)}"
    )


def _lead(found: Findings) -> str:
    totals, asked = found.read.totals, found.question
    when = f"{moment(totals['first_at'])} to {moment(totals['last_at'])}, " if totals["messages"] else ""
    only = f" Channels: {escaped(asked.channels, 200)}." if asked.channels else ""
    where = f"{html.escape(asked.timezone)}. Read from {escaped(found.read_from, 300)}."
    return f'<p class="lead">{when}{where}{only}</p>'


def _warnings(found: Findings) -> str:
    return "".join(f'<p class="warn">{escaped(text, 400)}</p>' for text in left_out(found))


def left_out(found: Findings) -> list[str]:
    """Sentences that say which messages the figures leave out, and why."""
    totals, asked = found.read.totals, found.question.fields
    texts = []
    if found.read.without_time:
        left = many(found.read.without_time, "message")
        none = "" if totals["messages"] else "Nothing can be counted: "
        texts.append(f"{none}{left} left out: no time can be read at {asked.time} in data.")
    if totals["messages"] and totals["without_sender"]:
        where = f" at {asked.sender} in data" if asked.sender else " (--sender-field names a field of data)"
        unknown = many(totals["without_sender"], "message")
        texts.append(f"{unknown} without a sender{where}: left out where senders are counted.")
    if totals["messages"] and totals["without_text"]:
        where = f" at {asked.text} in data" if asked.text else ""
        texts.append(f"{many(totals['without_text'], 'message')} without text{where}: left out of words.")
    return texts


def _facts(found: Findings) -> str:
    totals = found.read.totals
    if not totals["messages"]:
        return ""
    pairs = [
        (number(totals["messages"]), "messages"),
        (number(totals["channels"]), "channels"),
        (number(totals["senders"]), "senders"),
        (sized(totals["bytes"]), "of data, as text"),
    ]
    if found.replies:
        pairs.append((span(found.replies.figures["seconds_p50"]), "median reply"))
    if found.rates:
        pairs.append((number(found.rates[0]["max"]), "messages in the busiest second"))
    return facts(pairs)


def _foot(found: Findings) -> str:
    return (
        f"<footer><p>Written {found.written_at:%Y-%m-%d %H:%M:%S} UTC by Gapless. All figures are exact. "
        "This file fetches nothing.</p>"
        "<noscript><p>The plots need JavaScript; the numbers do not.</p></noscript></footer>"
    )
