"""Metrics for Prometheus."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from app.metrics.snapshots import Snapshots

COUNTED_S: Final = 0.1

_SUM: Final[dict[str, Any]] = {"multiprocess_mode": "livesum"}
_MAX: Final[dict[str, Any]] = {"multiprocess_mode": "livemax"}

REQUESTS = Counter(
    "gapless_http_requests_total", "Requests answered, by face and status.", ["face", "status"]
)
PUBLISHED = Counter("gapless_published_total", "Messages committed by this service.")
PUBLISH_SECONDS = Histogram(
    "gapless_publish_seconds",
    "Seconds from a parsed publish to its commit.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)
STREAMS = Gauge("gapless_streams", "Live streams open now.", **_SUM)
CUT_OFF = Counter(
    "gapless_streams_cut_total", "Streams and other answers ended by the server, by reason.", ["reason"]
)
BUFFERED = Gauge(
    "gapless_buffered_bytes", "Bytes of unfinished requests and of answers not yet taken.", **_SUM
)
GAVE_WAY = Gauge(
    "gapless_connections_gave_way", "Connections refused or cut off because those bytes were used up.", **_SUM
)
FEEDS = Gauge("gapless_feeds", "Feeds open now, each shared by readers of one selection.", **_SUM)
WAITING = Gauge("gapless_publishes_waiting", "Publishes that wait for a transaction.", **_SUM)
MEMBERS = Gauge("gapless_members", "Streams of deliveries open now, webhooks' included.", **_SUM)
SETTLEMENTS_WAITING = Gauge("gapless_acks_waiting", "Acks that wait for a statement.", **_SUM)
DELIVERED = Counter("gapless_delivered_total", "Deliveries handed to members.")
SETTLED = Counter("gapless_settled_total", "Receipts that came back, by their result.", ["status"])
UNSETTLED = Gauge(
    "gapless_ids_unsettled", "Ids taken that the watermark has not passed, as last seen.", **_MAX
)
REFUSED = Gauge("gapless_requests_refused", "Requests refused before routing, by code.", ["code"], **_SUM)
RESTARTS = Gauge("gapless_worker_restarts", "How often this worker was restarted.", **_SUM)
SETTLED_LAG = Gauge(
    "gapless_settled_lag_seconds", "How long the settled id has stood still below taken ids.", **_MAX
)
HEAD = Gauge("gapless_head_id", "The last id taken, as last seen.", **_MAX)
IDS_LEFT = Gauge(
    "gapless_ids_left",
    "Ids above the last one taken. Fences use up more of them than messages do.",
    multiprocess_mode="livemin",
)
SETTLED_ID = Gauge("gapless_settled_id", "The settled id.", **_MAX)
REGRESSIONS = Counter(
    "gapless_watermark_regressions_total",
    "Readings of the last id below an earlier one, without a server restart in between.",
)
HEARS = Gauge(
    "gapless_redis_connected", "1 if all workers are connected to Redis, else 0.", multiprocess_mode="livemin"
)
UNHINTED = Counter(
    "gapless_hints_missed_total",
    "Messages found by a sweep before any hint. Messages published in SQL have no hint.",
)
PRESENCE_DROPPED = Counter(
    "gapless_presence_dropped_total", "Events of joins and leaves that a reader did not take at once."
)
PRESENCE_UNSHOWN = Counter(
    "gapless_presence_unshown_total",
    "Channels on which a client was hidden when it joined, by the limit reached: client or process.",
    ["limit"],
)
FORGED = Counter("gapless_hints_refused_total", "Hints that were not signed by this installation.")


_shared = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
SNAPSHOTS: Final = Snapshots(Path(_shared) if _shared else None)
if not _shared:
    REGISTRY.register(SNAPSHOTS)


class _Sums:
    """What is counted at each request, added up without a lock, and passed on to the counters soon."""

    def __init__(self) -> None:
        self._sums: dict[Counter, int] = {}

    def add(self, counter: Counter, count: int) -> None:
        if counter in self._sums:
            self._sums[counter] += count
            return
        if not self._sums:
            asyncio.get_running_loop().call_later(COUNTED_S, self.pass_on)
        self._sums[counter] = count

    def pass_on(self) -> None:
        sums, self._sums = self._sums, {}
        for counter, count in sums.items():
            counter.inc(count)


_sums: Final = _Sums()

count: Final = _sums.add
"""Adds to a counter, which has it within `COUNTED_S`, and before this process tells its metrics or ends. For
what happens at each request: a counter of the library takes a lock each time."""
pass_on: Final = _sums.pass_on
"""Gives the counters all that was added."""


def metrics() -> tuple[bytes, str]:
    """The exposition and its content type; of all workers when there are several. Raises OSError."""
    _sums.pass_on()
    registry: CollectorRegistry = REGISTRY
    if _shared:
        _forget_the_dead(Path(_shared))
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        registry.register(SNAPSHOTS)
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _forget_the_dead(folder: Path) -> None:
    """Removes gauges of open things of dead workers. Their counters stay."""
    for pid in {path.stem.rpartition("_")[2] for path in folder.glob("gauge_live*.db")}:
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            mark_process_dead(pid, os.fspath(folder))  # type: ignore[no-untyped-call]
        except PermissionError:
            continue
