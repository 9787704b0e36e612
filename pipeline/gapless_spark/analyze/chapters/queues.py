"""The chapter about delivery: statistics of durable subscriptions from the live database."""

from __future__ import annotations

from gapless_spark.analyze import figures
from gapless_spark.analyze.delivery import Delivery
from gapless_spark.analyze.findings import Findings
from gapless_spark.analyze.markup import card, counted, named, numbers, pair, shown, table
from gapless_spark.analyze.plots import Plots
from gapless_spark.analyze.text import span

SUBSCRIPTION_COLUMNS = [
    named("subscription", "subscription"),
    counted("lag", "lag", bar=True),
    counted("in flight", "in_flight"),
    shown("oldest unsettled", "oldest_seconds", span),
    counted("acked", "acked"),
    counted("redelivered", "redelivered"),
    counted("dead-lettered", "dead_lettered"),
    counted("dead letters kept", "dead_letters"),
    shown("", "paused", lambda paused: "paused" if paused else ""),
]
DEAD_LETTER_COLUMNS = [
    named("subscription", "subscription"),
    shown("reason", "reason", str),
    shown("age", "age", lambda age: figures.AGE_LABELS[age]),
    counted("dead letters", "dead_letters", bar=True),
]


def delivery(found: Findings, plots: Plots) -> str:
    """Lag, attempts and dead letters, or the reason why they are missing."""
    rows = found.delivery
    if rows is None:
        why = found.delivery_absent or "the database was not asked"
        return card("Absent", f"Nothing is known about deliveries: {why.rstrip('.')}.")
    if not rows.subscriptions and not rows.dead_letters:
        return card("No subscriptions", "The database has no durable subscription and no dead letter.")
    parts = []
    if rows.attempts:
        parts.append(
            card(
                "Delivery attempts",
                "How often outstanding messages and dead letters were handed out. There is no such count for "
                "acked messages; redelivered, above, counts all deliveries but the first of each message.",
                plots.put("attempts", "Delivery attempts", figures.attempts(rows)),
            )
        )
    if rows.dead_letters:
        parts.append(
            card(
                "Dead letters",
                "Those kept now, by reason, and by the time since the subscription gave them up.",
                plots.put("dead-letters", "Dead letters by reason and age", figures.dead_letters(rows)),
                numbers(rows.dead_letters, DEAD_LETTER_COLUMNS),
            )
        )
    else:
        parts.append(card("Dead letters", "There are none."))
    return _subscriptions(rows, plots) + pair(*parts)


def _subscriptions(found: Delivery, plots: Plots) -> str:
    if not found.subscriptions:
        return card("Subscriptions", "There are none now; the dead letters below are of earlier ones.")
    rows = found.subscriptions[: figures.MAX_BARS]
    drawn = ""
    if any(row["lag"] or row["in_flight"] for row in rows):
        drawn = plots.put("lag", "Lag per subscription", figures.lag(found))
    note = (
        "Lag: matching messages neither settled nor in flight, at the time of this report. Acked, "
        "redelivered and dead-lettered count since the subscription was made."
    )
    if len(found.subscriptions) > len(rows):
        note += f" The {len(rows)} with the largest lag of {len(found.subscriptions):,}."
    return card("Subscriptions", note, drawn, table(rows, SUBSCRIPTION_COLUMNS))
