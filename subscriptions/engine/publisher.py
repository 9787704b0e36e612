"""Group commit: while one transaction commits, the next batch gathers.

A few appenders drain one queue. While no transaction is under way, an appender takes at once what is queued,
so a single publish is a batch of one. Otherwise it waits until as many requests are queued as are under way,
or until the other transaction ends: a transaction costs the database about as much as sixty messages in it,
so two small ones cost nearly twice as much as one. A transaction that hangs delays the others by no more than
`HOLD_S`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from subscriptions.domain.errors import Code, GaplessError, UnreachableError, unavailable
from subscriptions.domain.model import Append, Appended, Message, NewMessage, Position
from subscriptions.domain.watermark import Fence
from subscriptions.engine.entry import Encode, Entry, entry_of
from subscriptions.engine.hints import ChannelHint, Copy
from subscriptions.ports import AppendPort

log = logging.getLogger(__name__)

MAX_BATCH_MESSAGES = 1000
MAX_BATCH_REQUESTS = 512
MAX_BATCH_BYTES = 8 * 1024 * 1024
MAX_QUEUED = 20_000
MAX_QUEUED_BYTES = 64 * 1024 * 1024
HOLD_S = 0.02
"""So long a publish waits at most for others to share its transaction with."""
PATIENCE_S = 0.5
"""A publish that has waited longer than this when the database cannot be reached is not tried any more."""

Committed = Callable[[list[tuple[ChannelHint, list[Entry]]]], None]
"""A callback for every commit, in the order in which this process saw them."""


Interested = Callable[[str, str], bool]
"""Whether a reader may want a hot copy of a message in this namespace and channel."""


class _Waiting:
    __slots__ = ("append", "outcome", "since", "size_bytes")

    def __init__(self, append: Append, outcome: asyncio.Future[Appended], since: float) -> None:
        self.append = append
        self.since = since
        self.outcome = outcome
        self.size_bytes = append.size_bytes


class Publisher:
    """Answers a publish when it is committed. At most `MAX_QUEUED` requests and `MAX_QUEUED_BYTES` wait; one
    more is refused with `rate_limited`."""

    def __init__(
        self,
        appenders: Sequence[AppendPort],
        encode: Encode,
        committed: Committed,
        interested: Interested = lambda namespace, channel: True,
        current: Callable[[Fence | None, int], bool] = lambda fence, last_id: True,
    ) -> None:
        """`current` gets the newest fence and the last id of each commit, and says whether readers follow
        the history behind it. If not, they get no hint: after a fence, seqs may mean something else."""
        self._appenders = appenders
        self._encode = encode
        self._committed = committed
        self._interested = interested
        self._current = current
        self._queue: deque[_Waiting] = deque()
        self._queued_bytes = 0
        self._under_way = 0
        """Requests in transactions that are not answered yet."""
        self._arrived = asyncio.Event()
        self._workers: list[asyncio.Task[None]] = []
        self._closed = False

    def __repr__(self) -> str:
        return f"Publisher({len(self._queue)} waiting, {self._queued_bytes} bytes)"

    @property
    def waiting(self) -> int:
        """Requests that no transaction has taken up yet."""
        return len(self._queue)

    def start(self) -> None:
        """Begin to drain the queue."""
        self._workers = [asyncio.create_task(self._drain(appender)) for appender in self._appenders]

    async def stop(self) -> None:
        """Answer all queued requests, then end. No further request is taken."""
        self._closed = True
        self._arrived.set()
        if self._workers:
            await asyncio.gather(*self._workers)

    async def publish(self, append: Append) -> Appended:
        """Store the request's messages; the answer comes after the commit. Raises as `submit`, or what its
        future holds. Cancelling the caller does not cancel the request: it is still committed."""
        return await self.submit(append)

    def submit(self, append: Append) -> asyncio.Future[Appended]:
        """Queue the request. The future holds the answer after the commit, or the GaplessError that
        `AppendPort.append` gives. Requests are stored in the order in which they are queued, unless they
        are refused.

        Raises `rate_limited` when too much is queued, and `unavailable` when the server stops.
        """
        if self._closed:
            raise unavailable("the server is stopping; nothing was stored")
        loop = asyncio.get_running_loop()
        waiting = _Waiting(append, loop.create_future(), loop.time())
        if len(self._queue) >= MAX_QUEUED or self._queued_bytes + waiting.size_bytes > MAX_QUEUED_BYTES:
            raise GaplessError(Code.RATE_LIMITED, "too many publishes are waiting", retry_after=1)
        self._queue.append(waiting)
        self._queued_bytes += waiting.size_bytes
        if len(self._queue) == 1 or len(self._queue) >= self._under_way:
            self._arrived.set()
        return waiting.outcome

    def announce(self, append: Append, appended: Appended) -> None:
        """Send hints for a request that was committed in another way than by `publish`."""
        if appended.positions and not appended.replayed:
            self._tell([(append, appended)])

    # --- draining

    async def _drain(self, appender: AppendPort) -> None:
        while True:
            while not self._is_due():
                if self._closed and not self._queue:
                    return
                await self._next_arrival()
            batch = self._gather()
            self._under_way += len(batch)
            try:
                answers = await appender.append([w.append for w in batch])
            except GaplessError as error:
                answers = [error] * len(batch)
                if isinstance(error, UnreachableError):
                    self._refuse_older()
            except Exception:
                log.exception("append failed with an unexpected error")
                answers = [unavailable("appending failed; the message is stored once or not at all")] * len(
                    batch
                )
            self._under_way -= len(batch)
            self._arrived.set()
            self._answer(batch, answers)

    def _is_due(self) -> bool:
        """Whether the queued requests are to be stored now."""
        if not self._queue:
            return False
        if self._closed or len(self._queue) >= self._under_way:
            return True
        return self._queue[0].since + HOLD_S <= asyncio.get_running_loop().time()

    async def _next_arrival(self) -> None:
        self._arrived.clear()
        if not self._queue:
            await self._arrived.wait()
            return
        timer = asyncio.get_running_loop().call_later(HOLD_S, self._arrived.set)
        await self._arrived.wait()
        timer.cancel()

    def _refuse_older(self) -> None:
        """The database cannot be reached: refuse older requests now, and not after another attempt."""
        before = asyncio.get_running_loop().time() - PATIENCE_S
        while self._queue and self._queue[0].since <= before:
            waiting = self._queue.popleft()
            self._queued_bytes -= waiting.size_bytes
            if not waiting.outcome.done():
                waiting.outcome.set_exception(
                    UnreachableError("the database cannot be reached; nothing was stored")
                )

    def _gather(self) -> list[_Waiting]:
        """The next batch, in order of arrival.

        Two requests with one idempotency key never share a batch: the second must see the first one's
        answer. The database compares an expected seq or version with the state before the batch. So a request
        with one must be the first of the batch on its channel; if it is not, the batch ends before it.
        """
        batch: list[_Waiting] = []
        keys: set[tuple[str, str]] = set()
        touched: set[tuple[str, str]] = set()
        messages = size = looked_up = 0
        while self._queue and len(batch) < MAX_BATCH_REQUESTS:
            waiting = self._queue[0]
            append = waiting.append
            messages += len(append.messages)
            size += waiting.size_bytes
            if batch and (messages > MAX_BATCH_MESSAGES or size > MAX_BATCH_BYTES):
                break
            if append.idempotency_key is not None:
                if (append.namespace, append.idempotency_key) in keys:
                    break
                keys.add((append.namespace, append.idempotency_key))
            if append.expected_last_seq is not None or append.expects_version:
                # Channels are collected only here, once for each request: most batches expect no seq.
                for earlier in batch[looked_up:]:
                    touched |= _channels(earlier.append)
                looked_up = len(batch)
                if not touched.isdisjoint(_channels(append)):
                    break
            self._queue.popleft()
            self._queued_bytes -= waiting.size_bytes
            batch.append(waiting)
        return batch

    def _answer(self, batch: list[_Waiting], answers: list[Appended | GaplessError]) -> None:
        stored: list[tuple[Append, Appended]] = []
        for waiting, answer in zip(batch, answers, strict=True):
            outcome = waiting.outcome
            if isinstance(answer, GaplessError):
                if not outcome.done():
                    outcome.set_exception(answer)
                continue
            if not answer.replayed:
                stored.append((waiting.append, answer))
            if not outcome.done():
                outcome.set_result(answer)
        if stored:
            self._tell(stored)

    def _tell(self, stored: list[tuple[Append, Appended]]) -> None:
        try:
            # One transaction stored them all: the last one has its fence and its greatest id.
            newest = stored[-1][1]
            if not self._current(newest.fence, newest.positions[-1].id):
                return
            if hints := self._hints(stored):
                self._committed(hints)
        except Exception:  # The sweep finds messages for which no hint came.
            log.exception("sending hints of a commit failed")

    def _hints(self, stored: list[tuple[Append, Appended]]) -> list[tuple[ChannelHint, list[Entry]]]:
        """One hint for each channel of the batch, with an entry for each message that a reader may want."""
        hints: dict[tuple[str, str], tuple[ChannelHint, list[Entry]] | None] = {}
        for append, appended in stored:
            for new, position in zip(append.messages, appended.positions, strict=True):
                place = (append.namespace, new.channel)
                if place not in hints:
                    wanted = self._interested(*place)
                    hints[place] = _hint(place, appended) if wanted else None
                made = hints[place]
                if made is not None:
                    entry = entry_of(append.namespace, _message(new, position), self._encode)
                    made[0].copies.append(_copy(entry))
                    made[1].append(entry)
        return [made for made in hints.values() if made is not None]


def _channels(append: Append) -> set[tuple[str, str]]:
    return {(append.namespace, m.channel) for m in append.messages}


def _hint(place: tuple[str, str], appended: Appended) -> tuple[ChannelHint, list[Entry]]:
    namespace, channel = place
    channel_id, after_id, after_seq = appended.before[channel]
    return ChannelHint(namespace, channel, channel_id, after_id, after_seq, []), []


def _copy(entry: Entry) -> Copy:
    return Copy(entry.id, entry.seq, entry.type, entry.key, entry.body, entry.is_change)


def _message(new: NewMessage, position: Position) -> Message:
    return Message(
        id=position.id,
        channel=position.channel,
        seq=position.seq,
        type=new.type,
        key=new.key,
        data=new.data,
        binary=new.binary,
        headers=new.headers,
        sender=new.sender,
        created_at_us=position.created_at_us,
        expires_at_us=position.expires_at_us,
        change=None if new.change is None else new.change.text,
    )
