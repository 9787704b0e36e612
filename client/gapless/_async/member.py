"""A member of a subscription on asyncio: reads, extends and settles in the background of its consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from gapless._async.stream import AsyncStream
from gapless._call import Call
from gapless._calls import delivery as _delivery
from gapless._calls.delivery import Settled
from gapless._effects import AsyncEffects
from gapless._errors import apart
from gapless._forks import OneProcess
from gapless._retry import NO_RETRY, RetryPolicy
from gapless._streams.consuming import Inbox, Membership
from gapless._streams.gather import Gatherer
from gapless._streams.leases import NEVER, Lease

T = TypeVar("T")

RELEASE_SECONDS = 5.0
"""How long closing tries to release what nobody began."""
LINGER_SECONDS = 0.05
"""How long it waits for deliveries that were sent before and may still arrive."""
RELEASES = 5


class AsyncCaller(Protocol):
    """Carries out a call."""

    async def __call__(self, call: Call[T], policy: RetryPolicy | None = None) -> T: ...


class AsyncMember(OneProcess):
    """Two tasks, one that reads and one that extends, and a third while something is settled.

    Only its own tasks and its consumer refer to it, so that a garbage-collected consumer can end it.
    """

    def __init__(
        self, consuming: Membership, stream: AsyncStream[Lease], call: AsyncCaller, effects: AsyncEffects
    ) -> None:
        self.consuming = consuming
        self.leases = consuming.leases
        self._stream = stream
        self._call = call
        self._clock = effects.clock
        self._inbox = Inbox(consuming.asked.prefetch)
        self._acks: Gatherer[tuple[Lease, asyncio.Future[Settled]]] = Gatherer()
        self._settling: set[asyncio.Task[None]] = set()
        self._left_over: list[Lease] = []
        self._loops: list[asyncio.Task[None]] = []
        self._keeper: asyncio.Task[None]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self._plan_changed = asyncio.Event()
        self._planned_at = NEVER
        self._failure: Exception | None = None
        self._ended = False
        self._stopped = False
        super().__init__()

    @property
    def inherited(self) -> bool:
        """Whether it is a parent process's."""
        return self._foreign

    @property
    def state(self) -> str:
        """The member's state as text for people."""
        if self._ended:
            return "closed"
        return "stopped" if self._stopped else "open" if self._loops else "not connected"

    def start(self) -> None:
        """Begins to read, unless it already does."""
        self._use()
        if not self._loops and not self._ended:
            self._loop = asyncio.get_running_loop()
            self._keeper = asyncio.create_task(self._keep())
            self._loops = [asyncio.create_task(self._read()), self._keeper]

    async def opened(self) -> None:
        """Returns once the stream is open. Raises the error that prevents that for good."""
        self.start()
        while not (self.consuming.started or self._ended or self._stopped):
            await self._next_news()
        self._raise_failure()

    async def take(self) -> Lease | None:
        """The next lease, or None when there will be none. Raises, once, the error that ended the stream."""
        self.start()
        while not self._stopped:
            if (lease := self._inbox.take()) is not None:
                self.leases.let_go(lease)
                return lease
            if self._ended:
                self._raise_failure()
                return None
            await self._next_news()
        return None

    async def ack(self, lease: Lease) -> Settled:
        """Sends the ack together with others. A caller that is cancelled here does not know the outcome."""
        self._use()
        self.leases.let_go(lease)
        result: asyncio.Future[Settled] = asyncio.get_running_loop().create_future()
        self._acks.add(lease.receipt, (lease, result))
        if not self._acks.sending:
            self._spawn(self._send_acks())
        return await result

    async def nack(self, lease: Lease, delay: float | None, dead_letter: bool, reason: str | None) -> Settled:
        """Gives it back at once."""
        self._use()
        self.leases.let_go(lease)
        call = _delivery.nack(self.consuming.subscription, [lease.receipt], delay, dead_letter, reason)
        (settled,) = await self._call(call)
        self.leases.settle(lease, settled)
        return settled

    async def release(self, lease: Lease, delay: float | None) -> Settled:
        """Gives it back as if it had not been handed out."""
        self._use()
        self.leases.let_go(lease)
        (settled,) = await self._call(_delivery.release(self.consuming.subscription, [lease.receipt], delay))
        self.leases.settle(lease, settled)
        return settled

    async def extend(self, lease: Lease, ack_wait: float | None) -> Settled:
        """Moves its deadline."""
        self._use()
        (settled,) = await self._call(
            _delivery.extend(self.consuming.subscription, [lease.receipt], ack_wait)
        )
        self.leases.extended([settled], self._clock())
        return settled

    def keep(self, lease: Lease) -> None:
        """Extends it until it is settled."""
        self._use()
        self.leases.keep(lease)
        self._replan(lease)

    def abandon(self, lease: Lease) -> None:
        """Releases it without waiting, because a cancelled caller must not wait for the network.

        While the member is ending, closing it releases all that is left over: released before that, the
        message would come to this same stream once more.
        """
        if self._stopped:
            self._left_over.append(lease)
        else:
            self.leases.let_go(lease)
            self._spawn(self._release([lease]))

    def stop(self) -> None:
        """Stops handing out leases."""
        self._stopped = True
        self._news.set()

    async def aclose(self, patience_seconds: float) -> None:
        """Ends the stream after the settling under way, and after it released what nobody began or finished;
        all other leases end with the stream."""
        if self._foreign:
            return
        self.stop()
        try:
            if self._settling:
                await asyncio.wait(self._settling, timeout=patience_seconds)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(patience_seconds, RELEASE_SECONDS)):
                    await self._release_left_over()
        finally:
            self._cancel()
            await asyncio.gather(*self._loops, return_exceptions=True)
            await self._stream.aclose()
            self._ended = True

    def forsake(self) -> None:
        """Ends it from the thread where its consumer is garbage collected, which may be another one."""
        loop, running = self._loop, self._loops and not self._ended
        if loop is not None and running and not self._foreign and not loop.is_closed():
            with suppress(RuntimeError):  # It was closed in between.
                loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        self._stopped = True
        for task in self._loops:
            task.cancel()

    async def _read(self) -> None:
        try:
            async with self._stream as stream:
                self._news.set()
                async for lease in stream:
                    self._inbox.put(lease)
                    self._news.set()
                    self._replan(lease)
        except Exception as error:  # noqa: BLE001 (every error has to reach the caller that takes)
            self._failure = error
        finally:
            self._ended = True
            self.leases.lose_all("the consumer ended")
            self._news.set()
            # There is nothing left to extend, and a caller that could not open the stream never closes it.
            self._keeper.cancel()

    async def _keep(self) -> None:
        while True:
            now = self._clock()
            receipts = self.leases.due(now)
            if receipts:
                await self._extend_due(receipts)
                continue
            self._planned_at = self.leases.next_at()
            self._plan_changed.clear()
            wait_seconds = None if self._planned_at == NEVER else self._planned_at - now
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    await self._plan_changed.wait()

    async def _extend_due(self, receipts: list[str]) -> None:
        try:
            # One attempt: the leases that failed are due again, and by then others may be due too.
            results = await self._call(self.consuming.extension(receipts), NO_RETRY)
        except Exception as error:  # noqa: BLE001 (the other leases still have to be extended)
            self.consuming.not_extended(receipts, error)
        else:
            self.leases.extended(results, self._clock())

    async def _send_acks(self) -> None:
        while batch := self._acks.take():
            receipts = [receipt for receipt, _ in batch]
            try:
                results = await self._call(_delivery.ack(self.consuming.subscription, receipts))
            except asyncio.CancelledError:
                for _, (_, waiter) in batch:
                    waiter.cancel()
                raise
            except Exception as error:  # noqa: BLE001 (every error has to reach the waiting callers)
                for _, (_, waiter) in batch:
                    if not waiter.done():
                        waiter.set_exception(apart(error))
            else:
                for (_, (lease, waiter)), settled in zip(batch, results, strict=True):
                    self.leases.settle(lease, settled)
                    if not waiter.done():
                        waiter.set_result(settled)
            finally:
                self._acks.sent()

    async def _release_left_over(self) -> None:
        for _ in range(RELEASES):
            left = self._drain() or await self._linger()
            if not left:
                return
            await self._release(left)

    async def _linger(self) -> list[Lease]:
        """What arrives in the next moment."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while self._loops and not self._ended and not len(self._inbox):
                    await self._next_news()
        return self._drain()

    def _drain(self) -> list[Lease]:
        left = [lease for lease in self._left_over if not lease.lost] + self._inbox.drain()
        self._left_over = []
        return left

    async def _release(self, leases: list[Lease]) -> None:
        try:
            results = await self._call(self.consuming.release(leases), NO_RETRY)
        except Exception as error:  # noqa: BLE001 (no caller waits for it)
            self.consuming.not_released(leases, error)
        else:
            self.consuming.released(leases, results)

    def _replan(self, lease: Lease) -> None:
        if lease.extend_at < self._planned_at:
            self._plan_changed.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _next_news(self) -> None:
        # All waiters look again; those that find nothing go on waiting.
        self._news.clear()
        await self._news.wait()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
