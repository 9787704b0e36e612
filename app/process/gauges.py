"""Reports how full a worker is and how far behind."""

from __future__ import annotations

import asyncio
import os
import time

from prometheus_client import Counter

from app.http.connections import buffers
from app.http.limits import refusals
from app.metrics.registry import (
    BUFFERED,
    FEEDS,
    FORGED,
    GAVE_WAY,
    HEAD,
    HEARS,
    IDS_LEFT,
    MEMBERS,
    PRESENCE_DROPPED,
    PRESENCE_UNSHOWN,
    REFUSED,
    REGRESSIONS,
    RESTARTS,
    SETTLED_ID,
    SETTLED_LAG,
    SETTLEMENTS_WAITING,
    UNHINTED,
    UNSETTLED,
    WAITING,
)
from app.process.memory import GivingBack
from subscriptions.domain.model import MAX_ID
from subscriptions.engine.durable.consumers import Consumers
from subscriptions.engine.exchange import Exchange
from subscriptions.engine.live.engine import LiveEngine
from subscriptions.engine.presence import Presence
from subscriptions.engine.publisher import Publisher


async def tell(
    live: LiveEngine, publisher: Publisher, consumers: Consumers, exchange: Exchange, presence: Presence
) -> None:
    """Sets the gauges of fill levels and delays once a second, until cancelled."""
    RESTARTS.set(int(os.environ.get("GAPLESS_WORKER_RESTARTS", "0")))
    giving_back = GivingBack()
    settled_lag = SettledLag()
    unhinted, regressions, forged = Rising(UNHINTED), Rising(REGRESSIONS), Rising(FORGED)
    untold = Rising(PRESENCE_DROPPED)
    beyond_client = Rising(PRESENCE_UNSHOWN.labels("client"))
    beyond_process = Rising(PRESENCE_UNSHOWN.labels("process"))
    while True:
        watermark = live.watermark
        FEEDS.set(len(live.feeds))
        WAITING.set(publisher.waiting)
        MEMBERS.set(consumers.members)
        SETTLEMENTS_WAITING.set(consumers.settling)
        UNSETTLED.set(max(0, watermark.last_id - watermark.settled))
        held_bytes, gave_way = buffers()
        BUFFERED.set(held_bytes)
        GAVE_WAY.set(gave_way)
        giving_back.note(held_bytes)
        HEAD.set(watermark.last_id)
        IDS_LEFT.set(MAX_ID - watermark.last_id)
        SETTLED_ID.set(watermark.settled)
        SETTLED_LAG.set(settled_lag.seen(watermark.settled, watermark.last_id, time.monotonic()))
        HEARS.set(exchange.connected)
        unhinted.reached(live.unhinted)
        regressions.reached(watermark.regressions)
        forged.reached(exchange.forged)
        untold.reached(presence.dropped)
        beyond_client.reached(presence.clients.beyond_client)
        beyond_process.reached(presence.clients.beyond_process)
        for code, count in refusals.items():
            REFUSED.labels(code.value).set(count)
        await asyncio.sleep(1.0)


class Rising:
    """A metrics counter that follows a number that is counted elsewhere."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._count = 0

    def reached(self, count: int) -> None:
        """The number is `count` now."""
        self._counter.inc(count - self._count)
        self._count = count


class SettledLag:
    """How long the settled id has stood still below ids that were taken."""

    def __init__(self) -> None:
        self._settled = -1
        self._since = 0.0

    def seen(self, settled: int, last_id: int, now: float) -> float:
        """In the seconds of `now`, from repeated readings of both ids; 0 if no id waits to be settled."""
        if settled != self._settled or last_id <= settled:
            self._settled, self._since = settled, now
        return now - self._since
