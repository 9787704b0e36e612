"""Uses one connection to Redis after another, whatever error ends each of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from prometheus_client import Counter
from redis.exceptions import RedisError

from cache.link import STEP_TIMEOUT_S, Address, Link, LinkError

TELL_EVERY_S = 60.0
"""At most one log line for each connection in this time."""
MAX_TOLD = 200
"""The most characters of an answer of Redis in a log line."""

FAILURES = Counter("gapless_redis_failures_total", "Connections to Redis that failed, or that it ended.")

_EXPECTED = (RedisError, OSError, TimeoutError, LinkError)
"""The usual errors of Redis. Other errors are handled in the same way, and logged with a traceback."""


class Keeper:
    """Keeps one connection open. `failing`: what a log line says of a failure."""

    def __init__(self, log: logging.Logger, failing: str) -> None:
        self._log = log
        self._failing = failing
        self._tell_at = 0.0

    async def use_one(
        self, address: Address, use: Callable[[Link], Awaitable[None]], ended: Callable[[], None]
    ) -> None:
        """Use one connection until an error ends it. Only a cancellation of this task is raised. One that
        arose inside, such as that of a stream whose connection was closed, counts as an error. The driver,
        the event loop and libraries decide what else is raised when a connection breaks, so all is caught."""
        error = await _error_of_one(address, use, ended)
        FAILURES.inc()
        now = asyncio.get_running_loop().time()
        if now >= self._tell_at:
            trace = None if isinstance(error, _EXPECTED) else error
            self._log.warning("%s: %s", self._failing, words(error), exc_info=trace)
            self._tell_at = now + TELL_EVERY_S


async def _error_of_one(
    address: Address, use: Callable[[Link], Awaitable[None]], ended: Callable[[], None]
) -> BaseException:
    link = None
    try:
        link = await Link.open(address)
        await use(link)
        raise LinkError("the connection's work ended without an error")
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
        end_if_cancelled()
        return error
    finally:
        ended()
        if link is not None:
            await close(link)
        end_if_cancelled()


def words(what: object) -> str:
    """A short text of one line for the log, also if Redis sent line breaks."""
    text = f"{type(what).__name__}: {what}" if isinstance(what, BaseException) else repr(what)
    return ascii(text[:MAX_TOLD])[1:-1]


def end_if_cancelled() -> None:
    """Raise the cancellation again if the Redis client turned it into an error of its own."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def close(link: Link) -> None:
    """Close it, whatever that raises."""
    with contextlib.suppress(Exception, asyncio.CancelledError):
        async with asyncio.timeout(STEP_TIMEOUT_S):
            await link.close()
