"""Health, readiness and metrics."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from app.http.request import Answer, Plain
from app.metrics import registry
from subscriptions.domain.errors import GaplessError, unavailable
from subscriptions.engine.exchange import Exchange
from subscriptions.engine.live.engine import LiveEngine


class Alive(msgspec.Struct):
    """The process answers."""

    status: Literal["alive"]


class Ready(msgspec.Struct):
    """The service works."""

    status: Literal["ready"]
    redis: bool | UnsetType = UNSET


class Readiness(Protocol):
    async def check(self) -> None:
        """Raises GaplessError `unavailable` unless migrated, loaded, and the database reachable."""

    async def serve(self, namespace: str) -> None:
        """Load the definitions of a namespace that was just made. If that fails, it happens later."""


async def healthz(request: Plain) -> Answer:
    """Tell whether the process answers."""
    return Answer(msgspec.json.encode(Alive("alive")))


async def readyz(request: Plain, exchange: Exchange, readiness: Readiness, live: LiveEngine) -> Answer:
    """Tell whether the service is ready: migrated, definitions loaded, database reachable, log readable. The
    answer also tells the state of Redis, which is not needed. Where credentials are required, who sends none
    is told yes or no."""
    is_stranger = request.principal.grants == ()
    try:
        await readiness.check()
        live.check()
    except GaplessError:
        if is_stranger:
            raise unavailable("the service is not ready") from None
        raise
    return Answer(msgspec.json.encode(Ready("ready", UNSET if is_stranger else exchange.connected)))


async def metrics(request: Plain) -> Answer:
    """Get metrics for Prometheus, of all workers of this host. Who is not an operator gets those of their own
    namespace, and those that are of none."""
    body, media_type = registry.metrics()
    who = request.principal
    if who.subject is not None and not who.operator:
        body = of_namespace(body, who.namespace)
    return Answer(body, media_type=media_type.encode())


def of_namespace(text: bytes, namespace: str) -> bytes:
    """The metrics without the lines of other namespaces. Names have no quotes, so no label looks like
    another."""
    own = b'namespace="%b"' % namespace.encode()
    lines = text.split(b"\n")
    return b"\n".join([line for line in lines if b'namespace="' not in line or own in line])
