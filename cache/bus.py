"""Hints through Redis: one publish for each commit, one channel for the installation.

At any time, even in the middle of an answer, Redis may be away, slow, restarted or emptied, or the server may
not be a Redis. Sending never waits. A connection that fails is opened again. Hints that may have been missed
are replaced by a look into the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from prometheus_client import Counter
from redis.exceptions import RedisError

from cache.keeping import Keeper, end_if_cancelled, words
from cache.link import Address, Link, LinkError
from subscriptions.domain.errors import GaplessError, unavailable

log = logging.getLogger(__name__)

MAX_QUEUED = 1000
MAX_QUEUED_BYTES = 16 * 1024 * 1024
"""Limits of the hints that wait to be sent, and once more of the payloads to single processes."""
MAX_TURN_BYTES = 1024 * 1024
"""So much to single processes is sent together, or one payload that is larger. Hints go first each time."""
RECONNECT_S = 0.5
PROBE_EVERY_S = 0.25
"""How often this process asks Redis how many listen, and sends itself a message through Redis."""
PING_EVERY_S = 1.0
MAX_SILENCE_S = 3.0
"""Answers and messages to itself must arrive within this time; if not, the connection is opened again."""
SEND_TO_S = 3.0

DROPPED = Counter("gapless_hints_dropped_total", "Hints not sent because Redis did not take them.")
SENT = Counter("gapless_hints_sent_total", "Hints sent through Redis.")
HEARD = Counter("gapless_hints_heard_total", "Hints received through Redis.")


class _Queued(NamedTuple):
    """A payload to publish. `received` gets whether somebody listened; hints have none."""

    topic: str
    payload: bytes
    received: asyncio.Future[bool] | None = None


class _Queue:
    """Payloads that wait to be published, in their order."""

    def __init__(self) -> None:
        self._waiting: deque[_Queued] = deque()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def first(self) -> _Queued:
        return self._waiting[0]

    def put(self, queued: _Queued) -> None:
        self._waiting.append(queued)
        self.size_bytes += len(queued.payload)

    def take(self) -> _Queued:
        """The oldest."""
        taken = self._waiting.popleft()
        self.size_bytes -= len(taken.payload)
        return taken


class RedisBus:
    """Sends and receives hints through Redis; implements `HintBus`.

    `node` names this process. `heard` gets every payload of other processes and of this one; `maybe_missed`
    is called whenever hints may have been lost: at each (re)subscription.
    """

    def __init__(
        self,
        url: str,
        topic: str,
        node: str,
        heard: Callable[[bytes], None],
        maybe_missed: Callable[[], None],
    ) -> None:
        self._address = Address(url)
        self._topic = topic
        self._own_topic = f"{topic}:{node}"
        """A channel that only this process listens to. Empty messages show that messages arrive: its own, and
        those with which others ask whether it is there."""
        self._heard = heard
        self._maybe_missed = maybe_missed
        self._hints = _Queue()
        self._to_one = _Queue()
        """Payloads to single processes. Clients cause them, and they never displace hints."""
        self._arrived = asyncio.Event()
        self.alone = False
        """Whether only this process listens, as Redis said a moment ago: then a hint of what is stored is not
        worth making. A process that comes later finds that by its first sweep."""
        self.connected = False
        self._unheard_since: float | None = None
        """When Redis took the first message to this process that has not come back yet."""

    def __repr__(self) -> str:
        waiting = len(self._hints) + len(self._to_one)
        return f"RedisBus({'connected' if self.connected else 'away'}, {waiting} to send)"

    def send(self, payload: bytes) -> None:
        """Queue a payload; the oldest are dropped when the queue is full."""
        self._hints.put(_Queued(self._topic, payload))
        while len(self._hints) > MAX_QUEUED or self._hints.size_bytes > MAX_QUEUED_BYTES:
            _drop([self._hints.take()])
        self._arrived.set()

    async def send_to(self, node: str, make: Callable[[], bytes]) -> bool:
        """Send what `make` returns to one process, behind the hints that are queued; returns whether it
        listens. If it does not, `make` is never called. Raises `unavailable`: it may have got the payload or
        not."""
        topic = f"{self._topic}:{node}"
        # Redis answers any publish with the number of those who got it. It needs no further right.
        return await self._publish_to(topic, b"") and await self._publish_to(topic, make())

    async def _publish_to(self, topic: str, payload: bytes) -> bool:
        waiting = self._to_one
        # As much room as a payload takes stays free behind it, so large ones leave some to small ones.
        if len(waiting) >= MAX_QUEUED or waiting.size_bytes + 2 * len(payload) > MAX_QUEUED_BYTES:
            raise unavailable("too much waits to be sent to other processes; this was not sent")
        received: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        waiting.put(_Queued(topic, payload, received))
        self._arrived.set()
        try:
            async with asyncio.timeout(SEND_TO_S):
                return await received
        except TimeoutError:
            raise _away() from None

    async def run(self) -> None:
        """Send and listen until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            # Two connections: a send that hangs must not delay hints that arrive.
            tasks.create_task(self._keep("sending hints", self._send_over, self._sending_ended))
            tasks.create_task(self._keep("hearing hints", self._listen_over, self._listening_ended))

    async def _keep(
        self, what: str, use: Callable[[Link], Awaitable[None]], ended: Callable[[], None]
    ) -> None:
        """Use one connection after another until cancelled, also after any error."""
        keeper = Keeper(log, f"{what} failed, readers rely on the sweep")
        while True:
            await keeper.use_one(self._address, use, ended)
            await asyncio.sleep(RECONNECT_S)

    # --- sending

    async def _send_over(self, link: Link) -> None:
        probe_at = _now()
        while True:
            if self._hints or self._to_one:
                await self._publish(link)
            if _now() >= probe_at:
                await self._probe(link)
                probe_at = _now() + PROBE_EVERY_S
            if not self._hints and not self._to_one:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(probe_at - _now()):
                        await self._arrived.wait()
            end_if_cancelled()

    async def _publish(self, link: Link) -> None:
        queued = self._take()
        if not queued:
            return
        refused = queued
        try:
            answers = await link.ask([("PUBLISH", one.topic, one.payload) for one in queued])
            refused = []
            for one, answer in zip(queued, answers, strict=True):
                if not isinstance(answer, int):
                    refused.append(one)
                elif one.received is not None and not one.received.done():
                    one.received.set_result(answer > 0)
            _refuse_errors(answers)
        finally:
            SENT.inc(_hints_in(queued) - _hints_in(refused))
            _drop(refused)

    async def _probe(self, link: Link) -> None:
        """Ask how many listen, and send this process a message through Redis."""
        asked: list[tuple[str, ...]] = [("PUBSUB", "NUMSUB", self._topic)]
        if self.connected:
            asked.append(("PUBLISH", self._own_topic, ""))
            self._unheard_since = self._unheard_since or _now()
        listeners, *published = await link.ask(asked)
        _refuse_errors(published)
        match listeners:
            case [_, int(count)]:
                self.alone = self.connected and count <= 1
            case RedisError():  # The service's user in Redis may not ask: then hints are always made.
                self.alone = False
            case _:
                raise LinkError(f"an answer to something else: {words(listeners)}")

    def _take(self) -> list[_Queued]:
        """What is published together next: all hints, and behind them what is for single processes, as far
        as somebody still waits for it."""
        taken = [self._hints.take() for _ in range(len(self._hints))]
        size = 0
        while self._to_one and (not size or size + len(self._to_one.first.payload) <= MAX_TURN_BYTES):
            first = self._to_one.take()
            if first.received is not None and not first.received.done():
                size += len(first.payload)
                taken.append(first)
        self._arrived.clear()
        return taken

    def _sending_ended(self) -> None:
        self.alone = False
        self._unheard_since = None
        while self._hints or self._to_one:
            _drop(self._take())

    # --- listening

    async def _listen_over(self, link: Link) -> None:
        await link.tell("SUBSCRIBE", self._topic, self._own_topic)
        owed_since: float | None = _now()
        ping_at = _now() + PING_EVERY_S
        while True:
            now = _now()
            for since in (owed_since, self._unheard_since):
                if since is not None and now - since > MAX_SILENCE_S:
                    raise TimeoutError("Redis answers nothing, or does not pass on what it takes")
            if owed_since is None and now >= ping_at:
                await link.tell("PING")
                owed_since, ping_at = now, now + PING_EVERY_S
            answer = await link.read(PING_EVERY_S)
            end_if_cancelled()
            if answer is not None and self._take_in(answer):
                owed_since = None

    def _take_in(self, answer: Any) -> bool:
        """Handle what Redis sent; returns whether it answers the last request."""
        match answer:
            case [b"message", bytes(topic), bytes(payload)] if topic == self._topic.encode():
                HEARD.inc()
                self._heard(payload)
                return False
            case [b"message", bytes(topic), b""] if topic == self._own_topic.encode():
                self._unheard_since = None
                return False
            case [b"message", bytes(topic), bytes(payload)] if topic == self._own_topic.encode():
                self._heard(payload)
                return False
            case [b"subscribe", bytes(topic), int()]:
                if topic == self._own_topic.encode():
                    self.connected = True
                    log.info("hints are received through Redis")
                    self._maybe_missed()
                return self.connected
            case [b"pong", bytes()]:
                return True
        raise LinkError(f"unexpected answer: {words(answer)}")

    def _listening_ended(self) -> None:
        self.connected = False
        self.alone = False
        self._unheard_since = None


def _now() -> float:
    return asyncio.get_running_loop().time()


def _drop(queued: list[_Queued]) -> None:
    """Count hints that were not sent, and tell those who wait for other payloads."""
    DROPPED.inc(_hints_in(queued))
    for one in queued:
        if one.received is not None and not one.received.done():
            one.received.set_exception(_away())


def _hints_in(queued: list[_Queued]) -> int:
    return sum(one.received is None for one in queued)


def _away() -> GaplessError:
    return unavailable("Redis does not take messages to other processes")


def _refuse_errors(answers: list[Any]) -> None:
    """Raise the first error, or LinkError for the first answer that is not a number of receivers."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
        if not isinstance(answer, int):
            raise LinkError(f"an answer to something else: {words(answer)}")
