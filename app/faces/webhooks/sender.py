"""Posts one delivery to one webhook, and returns the outcome.

These are limited: the time from call to outcome, the bytes of an answer that are read, and the deliveries
under way in this process and to one host.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import httpcore
from prometheus_client import Counter, Histogram

from app.faces.webhooks.guard import Guard, Lookup, SystemLookup, UnreachableError
from app.faces.webhooks.limiter import MAX_CONNECTIONS, Limiter
from app.faces.webhooks.outcome import Crowded, Failed, Outcome, answered, broken
from app.faces.webhooks.signature import signed
from app.faces.webhooks.url import Endpoint, parse_url
from subscriptions.domain.errors import GaplessError

MAX_ANSWER_BYTES: Final = 16 * 1024
MAX_DRAIN_S: Final = 1.0
"""The time limit for an answer's body. It is read only so that the connection can be used again."""
KEEP_ALIVE_S: Final = 4.0
"""Shorter than common servers keep an idle connection, so that none is used while its server closes it."""

OUTCOMES = Counter("gapless_webhooks_total", "Webhook deliveries attempted, by outcome.", ["outcome"])
SECONDS = Histogram(
    "gapless_webhook_seconds",
    "From the start of an attempt to its outcome, waiting for a connection included.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30),
)
_BROKEN: Final = (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, OSError)


@dataclass(frozen=True, slots=True)
class Target:
    """The URL and the secret of a subscription. The secret is in no representation."""

    url: str
    secret: str = field(repr=False)


@dataclass(slots=True)
class Sending:
    """The progress of one delivery. `begun`: some of the request may have been sent."""

    begun: bool = False

    async def trace(self, event: str, _: Any) -> None:
        """The trace callback of httpcore."""
        self.begun = self.begun or event.endswith("send_request_headers.started")


class Sender:
    """Sends the webhooks of one process; used and closed on one loop.

    `lookup` resolves names and `network` connects to checked addresses; the defaults are the system's.
    """

    def __init__(
        self,
        allow_private: bool = False,
        *,
        lookup: Lookup | None = None,
        network: httpcore.AsyncNetworkBackend | None = None,
        tls: ssl.SSLContext | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._allow_private = allow_private
        self._now = now
        self._system = SystemLookup()
        self._limiter = Limiter()
        # A request that enters the pool has a place already, so none waits inside it.
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls or httpcore.default_ssl_context(),
            max_connections=MAX_CONNECTIONS,
            keepalive_expiry=KEEP_ALIVE_S,
            network_backend=Guard(allow_private, lookup or self._system, network),
        )

    async def close(self) -> None:
        """Closes idle connections. The callers of deliveries under way must end them first."""
        self._system.close()
        await self._pool.aclose()

    async def send(
        self,
        target: Target,
        message_id: int,
        subscription: str,
        attempt: int,
        body: bytes,
        timeout_s: float,
        sending: Sending | None = None,
    ) -> Outcome:
        """Posts `body`, the message as JSON. It waits up to `timeout_s` seconds for a connection, and then up
        to `timeout_s` for the answer, so a wait for a busy host does not shorten the time for the answer.
        `sending` shows the progress, also after a cancellation."""
        started_at = time.monotonic()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "user-agent": "gapless",
            "gapless-subscription": subscription,
            "gapless-attempt": str(attempt),
        }
        outcome: Outcome
        try:
            # Checked again, because the setting may have changed since the subscription was defined.
            endpoint = parse_url(target.url, self._allow_private)
            headers |= signed(target.secret, f"msg_{message_id}_{subscription}", int(self._now()), body)
        except GaplessError as error:
            outcome = Failed(error.detail)
        else:
            request = _request(endpoint, headers, body, timeout_s, sending or Sending())
            outcome = await self._bounded(endpoint.host, request, timeout_s)
        OUTCOMES.labels(type(outcome).__name__.lower()).inc()
        SECONDS.observe(time.monotonic() - started_at)
        return outcome

    async def _bounded(self, host: str, request: httpcore.Request, timeout_s: float) -> Outcome:
        """Waits for a place, then posts. Each has its own timeout, after which the outcome is a failure."""
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(timeout_s):
                    await held.enter_async_context(self._limiter.at(host))
            except TimeoutError:
                return Crowded("too many deliveries were under way already, so nothing was sent")
            outcome, has_answered = await self._post(request, timeout_s)
            (self._limiter.answered if has_answered else self._limiter.silent)(host)
            return outcome

    async def _post(self, request: httpcore.Request, timeout_s: float) -> tuple[Outcome, bool]:
        """The outcome, and whether the host answered."""
        has_answered = False
        outcome: Outcome = Failed(f"gave no answer within {timeout_s:g} s")
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                try:
                    response = await self._pool.handle_async_request(request)
                except (UnreachableError, *_BROKEN) as error:
                    return broken(error), False
                has_answered = True
                outcome = answered(
                    response.status, response.headers, datetime.fromtimestamp(self._now(), UTC)
                )
                await _drain(response)
        return outcome, has_answered


def _request(
    endpoint: Endpoint, headers: dict[str, str], body: bytes, timeout_s: float, sending: Sending
) -> httpcore.Request:
    url = httpcore.URL(scheme=endpoint.scheme, host=endpoint.host, port=endpoint.port, target=endpoint.target)
    return httpcore.Request(
        "POST",
        url,
        headers=[("host", endpoint.authority), *headers.items()],
        content=body,
        extensions={"timeout": {"connect": timeout_s}, "trace": sending.trace},
    )


async def _drain(response: httpcore.Response) -> None:
    """Reads the body up to the limits. A connection with more bytes is closed."""
    read = 0
    try:
        with suppress(TimeoutError, *_BROKEN):
            async with asyncio.timeout(MAX_DRAIN_S):
                async for part in response.aiter_stream():
                    read += len(part)
                    if read > MAX_ANSWER_BYTES:
                        break
    finally:
        await response.aclose()
