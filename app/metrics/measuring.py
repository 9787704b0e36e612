"""Measures for metrics what requests do not count: durable subscriptions, and the workers' processes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Final

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR

from app.metrics.snapshots import Family, Sample, Snapshots, family
from db.connect import DatabaseConfig, Pool
from db.measures import Measure, Measures
from subscriptions.domain.errors import GaplessError

log = logging.getLogger(__name__)

TOGETHER = 10
TIMEOUT_S = 5.0
"""Timeout of a statement that measures that many subscriptions."""
PROCESS_EVERY_S = 2.0
REST = 19
"""The pause after a round is at least this many times its length, to spare a slow database."""

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
    ("dead_lettered", "counter", "dead_lettered", "Messages that became dead letters."),
    (
        "removed",
        "counter",
        "removed_by_retention",
        "Messages that retention removed unsettled.",
    ),
)
UNMEASURED: Final = "gapless_subscriptions_unmeasured"
MEASURED_AT: Final = "gapless_subscriptions_measured_timestamp_seconds"


async def subscriptions(database_url: str, snapshots: Snapshots, *, most: int, every_s: float) -> None:
    """Measure until cancelled, over an own connection. The oldest `most` subscriptions have metrics of their
    own; one more metric counts the others."""
    database = DatabaseConfig(database_url, statement_timeout_s=TIMEOUT_S)
    pool = Pool(database, application="metrics", size=1)
    try:
        while True:
            took_s = await _round(Measures(pool), snapshots, most)
            await asyncio.sleep(max(every_s, took_s * REST))
    finally:
        await pool.close()


async def _round(measures: Measures, snapshots: Snapshots, most: int) -> float:
    """Measures all of them once and returns how many seconds that took."""
    began = time.monotonic()
    try:
        found, count = await measured(measures, most)
        families = as_families(found, max(0, count - len(found)), time.time())
        await asyncio.to_thread(snapshots.put, "subscriptions", families)
    except (GaplessError, OSError) as error:
        # The time of the last measurement shows how old the metrics are.
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


def as_families(found: list[Measure], left_out: int, at: float) -> list[Family]:
    """The metrics of subscriptions for a scrape."""
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
    left = "Subscriptions without metrics: too many, or too slow to measure."
    when = "When the subscriptions were measured, in seconds since the epoch."
    return [
        *families,
        family(UNMEASURED, left, "gauge", [({}, left_out)]),
        family(MEASURED_AT, when, "gauge", [({}, at)]),
    ]


async def process(snapshots: Snapshots, worker: str) -> None:
    """If there are several workers, measure each of their processes until cancelled."""
    while True:
        try:
            await asyncio.to_thread(snapshots.put, f"process-{worker}", list(_of_this_process(worker)))
        except OSError as error:
            log.warning("the process could not be measured: %s", error)
        await asyncio.sleep(PROCESS_EVERY_S)


def _of_this_process(worker: str) -> Iterable[Family]:
    """The process metrics of the client library, labelled with the worker."""
    for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
        for metric in collector.collect():
            samples = [Sample(s.name, {**s.labels, "worker": worker}, s.value) for s in metric.samples]
            yield Family(metric.name, metric.documentation, metric.type, samples)
