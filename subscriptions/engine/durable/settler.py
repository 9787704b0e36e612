"""Group commit for acks: while one statement commits, the next gathers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from subscriptions.domain.delivery import Receipt, Settled
from subscriptions.domain.errors import Code, GaplessError, unavailable
from subscriptions.ports import DeliveryPort

log = logging.getLogger(__name__)

MAX_BATCH = 1000
MAX_QUEUED = 200_000
WORKERS = 2


class _Waiting:
    __slots__ = ("outcome", "receipts")

    def __init__(self, receipts: Sequence[Receipt], outcome: asyncio.Future[list[Settled]]) -> None:
        self.receipts = receipts
        self.outcome = outcome


class Settler:
    """Joins acks that wait at the same time into one statement. At most `MAX_QUEUED` receipts wait; further
    ones are refused with `rate_limited`."""

    def __init__(self, port: DeliveryPort) -> None:
        self._port = port
        self._queue: deque[_Waiting] = deque()
        self._queued = 0
        self._arrived = asyncio.Event()
        self._workers: list[asyncio.Task[None]] = []
        self._closed = False

    def __repr__(self) -> str:
        return f"Settler({self._queued} waiting)"

    @property
    def waiting(self) -> int:
        """Receipts that no statement has taken up yet."""
        return self._queued

    def start(self) -> None:
        """Begin to drain the queue."""
        self._workers = [asyncio.create_task(self._drain()) for _ in range(WORKERS)]

    async def stop(self) -> None:
        """Answer all queued acks, then end."""
        self._closed = True
        self._arrived.set()
        await asyncio.gather(*self._workers)

    async def ack(self, receipts: Sequence[Receipt]) -> list[Settled]:
        """One answer for each receipt, after the commit. Cancelling the caller does not cancel the ack.

        Raises GaplessError `unavailable`, `rate_limited`.
        """
        if self._closed:
            raise unavailable("the server is stopping; nothing was settled")
        if self._queued + len(receipts) > MAX_QUEUED:
            raise GaplessError(Code.RATE_LIMITED, "too many acks are waiting", retry_after=1)
        waiting = _Waiting(receipts, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self._queued += len(receipts)
        self._arrived.set()
        return await waiting.outcome

    async def _drain(self) -> None:
        while True:
            while not self._queue:
                if self._closed:
                    return
                self._arrived.clear()
                await self._arrived.wait()
            batch = self._gather()
            try:
                settled = await self._port.ack([r for waiting in batch for r in waiting.receipts])
            except GaplessError as error:
                _fail(batch, error)
            except Exception:
                log.exception("settling failed with an unexpected error")
                _fail(batch, unavailable("settling failed; each message was acked or was not"))
            else:
                _answer(batch, settled)

    def _gather(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        while self._queue and (not batch or size + len(self._queue[0].receipts) <= MAX_BATCH):
            waiting = self._queue.popleft()
            size += len(waiting.receipts)
            batch.append(waiting)
        self._queued -= size
        return batch


def _answer(batch: list[_Waiting], settled: list[Settled]) -> None:
    at = 0
    for waiting in batch:
        end = at + len(waiting.receipts)
        if not waiting.outcome.done():
            waiting.outcome.set_result(settled[at:end])
        at = end


def _fail(batch: list[_Waiting], error: GaplessError) -> None:
    for waiting in batch:
        if not waiting.outcome.done():
            waiting.outcome.set_exception(error)
