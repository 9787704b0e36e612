"""Hints through Redis: one publish a commit, one channel an installation.

Redis may be away, slow, restarted or emptied at any time: sending never waits, and whatever may have been
missed is answered by looking into the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable

from prometheus_client import Counter
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

log = logging.getLogger(__name__)

MAX_QUEUED = 1000
MAX_QUEUED_BYTES = 16 * 1024 * 1024
SEND_TIMEOUT_S = 1.0
RECONNECT_S = 0.5
HEALTH_CHECK_S = 5
MAX_SILENCES = 2
COUNT_EVERY_S = 0.25

DROPPED = Counter("gapless_hints_dropped_total", "Hints not sent because Redis did not take them.")
SENT = Counter("gapless_hints_sent_total", "Hints sent through Redis.")
HEARD = Counter("gapless_hints_heard_total", "Hints received through Redis.")

_FAILURES = (RedisError, OSError, TimeoutError)


class RedisBus:
    """Implements `HintBus`.

    `heard` gets every payload of other processes and of this one; `maybe_missed` is called whenever hints
    may have been lost: at each (re)subscription, which is the only sign redis-py gives of a lost connection.
    """

    def __init__(
        self, url: str, topic: str, heard: Callable[[bytes], None], maybe_missed: Callable[[], None]
    ) -> None:
        self._topic = topic
        self._heard = heard
        self._maybe_missed = maybe_missed
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._arrived = asyncio.Event()
        self.alone = False
        """Whether nobody but this process listens, as far as Redis said a moment ago: then a hint is not
        worth making. A process that comes later finds what it missed by its first sweep."""
        self.connected = False
        # Two clients: a send that hangs must not hold up what is heard.
        self._sender = _client(url, SEND_TIMEOUT_S)
        self._listener = _client(url, None)

    def __repr__(self) -> str:
        return f"RedisBus({'connected' if self.connected else 'away'}, {len(self._queue)} to send)"

    def send(self, payload: bytes) -> None:
        """Queue a payload; the oldest are dropped when the queue is full."""
        self._queue.append(payload)
        self._queued_bytes += len(payload)
        while len(self._queue) > MAX_QUEUED or self._queued_bytes > MAX_QUEUED_BYTES:
            self._queued_bytes -= len(self._queue.popleft())
            DROPPED.inc()
        self._arrived.set()

    async def run(self) -> None:
        """Send and listen until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._send_loop())
                tasks.create_task(self._listen_loop())
                tasks.create_task(self._count_loop())
        finally:
            await _close(self._sender)
            await _close(self._listener)

    async def ping(self) -> bool:
        """Whether Redis answers now."""
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                return bool(await self._sender.ping())
        except _FAILURES:
            return False

    async def _send_loop(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._queue:
                _end_if_cancelled()
                payloads = list(self._queue)
                self._queue.clear()
                self._queued_bytes = 0
                try:
                    async with (
                        asyncio.timeout(SEND_TIMEOUT_S),
                        self._sender.pipeline(transaction=False) as pipe,
                    ):
                        for payload in payloads:
                            pipe.publish(self._topic, payload)
                        await pipe.execute()
                    SENT.inc(len(payloads))
                except _FAILURES:
                    DROPPED.inc(len(payloads))
                    _end_if_cancelled()
                    with contextlib.suppress(*_FAILURES):
                        await self._sender.connection_pool.disconnect(inuse_connections=True)
                    await asyncio.sleep(RECONNECT_S)
            _end_if_cancelled()

    async def _count_loop(self) -> None:
        """Ask Redis how many listen."""
        while True:
            try:
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    [(_, listeners)] = await self._sender.pubsub_numsub(self._topic)
                self.alone = self.connected and listeners <= 1
            except _FAILURES:
                self.alone = False
            _end_if_cancelled()
            await asyncio.sleep(COUNT_EVERY_S)

    async def _listen_loop(self) -> None:
        while True:
            pubsub = self._listener.pubsub()
            try:
                await pubsub.subscribe(self._topic)
                await self._listen(pubsub)
            except _FAILURES as error:
                if self.connected:
                    log.warning("Redis is away, delivery falls back to the sweep: %s", error)
            finally:
                self.connected = False
                await _close(pubsub)
            _end_if_cancelled()
            await asyncio.sleep(RECONNECT_S)

    async def _listen(self, pubsub: PubSub) -> None:
        silent = 0
        while True:
            message = await pubsub.get_message(timeout=HEALTH_CHECK_S)
            silent = silent + 1 if message is None else 0
            if message is None:
                # A connection that is dead without saying so does not answer when asked.
                if silent > MAX_SILENCES:
                    raise TimeoutError("Redis does not answer")
                await pubsub.ping()
            elif message["type"] == "subscribe":
                self.connected = True
                self._maybe_missed()
            elif message["type"] == "message":
                HEARD.inc()
                self._heard(message["data"])


def _client(url: str, timeout_s: float | None) -> Redis:
    return Redis.from_url(
        url,
        socket_connect_timeout=SEND_TIMEOUT_S,
        socket_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=HEALTH_CHECK_S,
    )


def _end_if_cancelled() -> None:
    """Go on with a cancellation that ended as an error of the client's own while it cleaned up."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _close(closable: Redis | PubSub) -> None:
    try:
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await closable.aclose()
    except _FAILURES:
        pass
