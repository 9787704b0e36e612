"""Consumes a durable subscription on asyncio."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from gapless._async.member import AsyncMember
from gapless._calls.delivery import Settled, reason_of
from gapless._errors import GaplessError, LeaseLost
from gapless._streams.consuming import Consumption
from gapless._streams.in_hand import InHand
from gapless._streams.leases import Lease

log = logging.getLogger("gapless")


class AsyncDelivery(InHand):
    """One message leased to this consumer. Use it as a block, or settle it by hand.

    `async with` extends the lease until the end of the block. At its end the message is acked. If the block
    raises, the message is nacked with the exception as the reason, and the exception is raised on. If the
    block is cancelled, the message is released without waiting for the service: that is neither an attempt
    nor a failure. A message that was settled by hand is left alone.

    `lost` says that the message is or will be handed out again, because the lease or its stream ended. The
    loss is logged. With `raise_lost` it is also raised as `LeaseLost` at the end of the block. The ack is
    tried in any case, and its answer decides.
    """

    def __init__(self, lease: Lease, consumer: AsyncConsumer) -> None:
        super().__init__(lease)
        # This reference keeps the stream, and with it the lease, alive as long as the delivery exists.
        self._consumer = consumer

    async def ack(self) -> Settled:
        """Settles the message for good. The result's status is `acked`, `lease_expired` (the message will
        come again), or `unknown` (it was settled before, or a seek forgot it)."""
        return await self._consumer._member.ack(self._lease)

    async def nack(
        self, *, delay: float | None = None, dead_letter: bool = False, reason: str | None = None
    ) -> Settled:
        """Gives the message back. It comes again after `delay` seconds, by default as the backoff says. As a
        `dead_letter` it does not come again. If it becomes a dead letter, that holds the `reason`."""
        return await self._consumer._member.nack(self._lease, delay, dead_letter, reason)

    async def release(self, *, delay: float | None = None) -> Settled:
        """Gives the message back without having worked on it. It comes again at once, or after `delay`
        seconds, with the same attempt. The result's status is `released`, `lease_expired` or `unknown`."""
        return await self._consumer._member.release(self._lease, delay)

    async def extend(self, ack_wait: float | None = None) -> Settled:
        """Moves the deadline to `ack_wait` seconds from now; the default is the subscription's `ack_wait`."""
        return await self._consumer._member.extend(self._lease, ack_wait)

    async def __aenter__(self) -> Self:
        self._consumer._member.keep(self._lease)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._consumer._member.inherited:
            return  # The block ends in the parent too, and settles the message there.
        if error is None:
            await self._finish()
        elif isinstance(error, Exception):
            await self._give_back(error)
        elif not self._lease.settled:
            self._consumer._member.abandon(self._lease)

    def _settle_elsewhere(self) -> None:
        """A transaction acked it."""
        self._consumer._member.leases.settle(self._lease)

    async def _finish(self) -> None:
        cause: GaplessError | None = None
        if not self._lease.settled:
            try:
                await self.ack()
            except GaplessError as error:
                if not error.retryable:
                    raise
                cause = error
                self._consumer._member.leases.lose(self._lease, f"it could not be acked: {error}")
        if self._consumer._asked.raise_lost:
            self._raise_lost(cause)

    async def _give_back(self, error: Exception) -> None:
        """Gives the message back after a failure. An error of the nack must not hide that failure."""
        if self._lease.settled:
            return
        try:
            await self.nack(reason=reason_of(error))
        except Exception as trouble:  # noqa: BLE001 (the caller has to see the first error)
            self._consumer._member.leases.lose(self._lease, f"it could not be nacked: {trouble}")


AsyncHandler = Callable[[AsyncDelivery], Awaitable[object]]
"""What `work` calls with each delivery."""


class AsyncConsumer:
    """An asynchronous iterator over the deliveries of a subscription. It reconnects after a lost connection.

    It reads ahead up to `prefetch` deliveries and keeps their leases alive until they are handed out. When
    the connection is lost, its leases end, and their messages come again. Several tasks may iterate over one
    consumer. `async with` opens and ends it. At the end it waits for the settling under way and releases what
    it had read ahead; all other leases end at once. A consumer that is garbage collected ends too. Cancelling
    a wait for the next delivery loses nothing.
    """

    def __init__(self, member: AsyncMember, asked: Consumption, patience_seconds: float) -> None:
        self._member = member
        self._asked = asked
        self._patience_seconds = patience_seconds

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._asked.subscription} {self._member.state}>"

    def __del__(self) -> None:
        self._member.forsake()

    async def __aenter__(self) -> Self:
        try:
            await self._member.opened()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncDelivery:
        lease = await self._member.take()
        if lease is None:
            raise StopAsyncIteration
        return AsyncDelivery(lease, self)

    async def work(self, handler: AsyncHandler, *, concurrency: int = 1) -> None:
        """Calls the handler with each delivery inside the delivery's block, `concurrency` at a time.

        If the handler raises, the error is logged, the message is nacked, and work goes on. Work ends after
        `stop`, when the running handlers have returned, or with an error that a retry does not mend, such as
        `NotFound`. When it is cancelled, it cancels the handlers, and closing releases their messages.
        Handlers on threads cannot be cancelled: they run to their end first, unless work is interrupted a
        second time.
        """
        if concurrency < 1:
            raise ValueError("the concurrency must be at least 1")
        workers = [asyncio.create_task(self._work(handler)) for _ in range(concurrency)]
        try:
            await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            self.stop()
            await asyncio.wait(workers)
        finally:
            self.stop()
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        for worker in workers:
            worker.result()

    def stop(self) -> None:
        """Stops handing out deliveries, which ends every iteration. Deliveries in hand may still be settled.

        Deliveries that were read ahead stay leased until this consumer is closed, which releases them: close
        it soon.
        """
        self._member.stop()

    async def aclose(self) -> None:
        """Ends the stream after the settling under way, and releases what was read ahead and what was
        broken off; all other leases end. Closing twice is harmless."""
        await self._member.aclose(self._patience_seconds)

    async def _work(self, handler: AsyncHandler) -> None:
        async for delivery in self:
            # A lost lease is logged; no caller could catch `LeaseLost` here.
            with suppress(LeaseLost):
                async with delivery:
                    await self._attempt(handler, delivery)

    async def _attempt(self, handler: AsyncHandler, delivery: AsyncDelivery) -> None:
        try:
            await handler(delivery)
        except Exception as error:
            log.warning("handler failed with %r", delivery, exc_info=error)
            await delivery._give_back(error)
            self._member.leases.settle(delivery._lease)
