"""Health, readiness and metrics."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from app.http.request import Answer, Plain
from app.metrics import registry
from subscriptions.engine.exchange import Exchange
from subscriptions.engine.live.engine import LiveEngine


class Alive(msgspec.Struct):
    """The process answers."""

    status: Literal["alive"]


class Ready(msgspec.Struct):
    """The service works."""

    status: Literal["ready"]
    redis: bool


class Readiness(Protocol):
    async def check(self) -> None:
        """Raises GaplessError `unavailable` unless migrated, loaded, and the database reachable."""


async def healthz(request: Plain) -> Answer:
    """Tell whether the process answers."""
    return Answer(msgspec.json.encode(Alive("alive")))


async def readyz(request: Plain, exchange: Exchange, readiness: Readiness, live: LiveEngine) -> Answer:
    """Tell whether the service is ready: migrated, definitions loaded, database reachable, log readable. The
    answer also tells the state of Redis, which is not needed."""
    await readiness.check()
    live.check()
    return Answer(msgspec.json.encode(Ready("ready", exchange.connected)))


async def metrics(request: Plain) -> Answer:
    """Get metrics for Prometheus, of all workers of this host."""
    body, media_type = registry.metrics()
    return Answer(body, media_type=media_type.encode())
