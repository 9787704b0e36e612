"""Measures what a scrape is told and no request counts: durable subscriptions, and the workers' processes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Final

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR

from app.shelf import Family, Sample, Shelf, family
from db.connect import DatabaseConfig, Pool
from db.measures import Measure, Measures
from subscriptions.domain.errors import GaplessError

log = logging.getLogger(__name__)

TOGETHER = 10
TIMEOUT_S = 5.0
"""Of a statement that measures that many subscriptions."""
PROCESS_EVERY_S = 2.0
REST = 19
"""So many times as long as a round took nothing is measured: a slow database is not asked all the time."""

_OF_ONE: Final[tuple[tuple[str, str, str, str], ...]] = (
    (
        "lag",
        "gauge",
        "lag_messages",
        "Messages neither settled nor leased; with a filter, to about 10,000.",
    ),
    ("lag_seconds", "gauge", "lag_seconds", "Age of the oldest message neither settled nor leased; 0: none."),
    ("oldest_seconds", "gauge", "oldest_unacked_seconds", "Age of the oldest message not settled; 0: none."),
    ("in_flight", "gauge", "in_flight", "Messages leased now."),
    ("dead_letters", "gauge", "dead_letters", "Dead letters kept; at most 10,000 are counted."),
    ("acked", "counter", "acked", "Messages acked."),
    ("redelivered", "counter", "redelivered", "Deliveries that were not the first of their message."),
    ("dead_lettered", "counter", "dead_lettered", "Messages given up."),
    (
        "removed",
        "counter",
        "removed_by_retention",
        "Messages that retention took unsettled.",
    ),
)
UNMEASURED: Final = "gapless_subscriptions_unmeasured"
MEASURED_AT: Final = "gapless_subscriptions_measured_timestamp_seconds"


async def subscriptions(database_url: str, shelf: Shelf, *, most: int, every_s: float) -> None:
    """Measure until cancelled, over a connection of its own. The oldest `most` subscriptions are told one by
    one; how many are not, too."""
    database = DatabaseConfig(database_url, statement_timeout_s=TIMEOUT_S)
    pool = Pool(database, application="metrics", size=1)
    try:
        while True:
            took_s = await _round(Measures(pool), shelf, most)
            await asyncio.sleep(max(every_s, took_s * REST))
    finally:
        await pool.close()


async def _round(measures: Measures, shelf: Shelf, most: int) -> float:
    """Measure them all once; how many seconds that took."""
    began = time.monotonic()
    try:
        found, count = await measured(measures, most)
        families = told(found, max(0, count - len(found)), time.time())
        await asyncio.to_thread(shelf.put, "subscriptions", families)
    except (GaplessError, OSError) as error:
        # The time of the last measurement says how old what is told has become.
        log.warning("the subscriptions could not be measured: %s", error)
    return time.monotonic() - began


async def measured(measures: Measures, most: int) -> tuple[list[Measure], int]:
    """The oldest `most`, and how many there are. Those that take too long to measure are left out."""
    ids, count = await measures.oldest(most)
    found: list[Measure] = []
    for start in range(0, len(ids), TOGETHER):
        try:
            found += await measures.of(ids[start : start + TOGETHER])
        except GaplessError as error:
            log.warning("some subscriptions could not be measured: %s", error)
    return found, count


def told(found: list[Measure], left_out: int, at: float) -> list[Family]:
    """What a scrape is told of them."""
    labelled = [({"namespace": m.namespace, "subscription": m.subscription}, m) for m in found]
    families = [
        family(
            f"gapless_subscription_{name}",
            text,
            kind,
            [(labels, getattr(measure, member) or 0) for labels, measure in labelled],
        )
        for member, kind, name, text in _OF_ONE
    ]
    left = "Subscriptions of which nothing is told: too many, or too slow to measure."
    when = "When the subscriptions were measured, in seconds since the epoch."
    return [
        *families,
        family(UNMEASURED, left, "gauge", [({}, left_out)]),
        family(MEASURED_AT, when, "gauge", [({}, at)]),
    ]


async def process(shelf: Shelf, worker: str) -> None:
    """Where there are several workers: tell how each of their processes does, until cancelled."""
    while True:
        try:
            await asyncio.to_thread(shelf.put, f"process-{worker}", list(_of_this_process(worker)))
        except OSError as error:
            log.warning("the process could not be measured: %s", error)
        await asyncio.sleep(PROCESS_EVERY_S)


def _of_this_process(worker: str) -> Iterable[Family]:
    """What the library says of a process by itself, with its worker."""
    for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
        for metric in collector.collect():
            samples = [Sample(s.name, {**s.labels, "worker": worker}, s.value) for s in metric.samples]
            yield Family(metric.name, metric.documentation, metric.type, samples)
