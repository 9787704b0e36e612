"""Consuming a durable subscription on asyncio."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from gapless._async_member import AsyncMember
from gapless._consuming import Consumption
from gapless._delivery import Settled, reason_of
from gapless._errors import GaplessError, LeaseLost
from gapless._in_hand import InHand
from gapless._leases import Lease

log = logging.getLogger("gapless")


class AsyncDelivery(InHand):
    """One message in hand, leased to this consumer: used as a block, or settled by hand.

    In `async with`, its lease is extended until the end of the block. There the message is acked, or, when
    the block raises, nacked with the exception as the reason, which then goes on its way; a block that is
    broken off from outside gives the message back without waiting for that. What was settled by hand is left
    alone.

    `lost` says that the message is or will be handed out again: the lease ended, or the stream that gave it.
    That is logged, and raised as `LeaseLost` at the end of the block where `raise_lost` asks for it; an ack
    is tried all the same, and its answer has the last word.
    """

    def __init__(self, lease: Lease, consumer: AsyncConsumer) -> None:
        super().__init__(lease)
        # The stream, and with it the lease, lives as long as somebody holds the delivery.
        self._consumer = consumer

    async def ack(self) -> Settled:
        """Settles the message for good. The status tells: `acked`; `lease_expired`: it will come again;
        `unknown`: it was settled before, or a seek forgot it."""
        return await self._consumer._member.ack(self._lease)

    async def nack(
        self, *, delay: float | None = None, dead_letter: bool = False, reason: str | None = None
    ) -> Settled:
        """Gives the message back, to come again after `delay` seconds, else as the backoff says; as a
        `dead_letter` it does not come again. `reason` stands in the dead letter that comes of it at last."""
        return await self._consumer._member.nack(self._lease, delay, dead_letter, reason)

    async def extend(self, ack_wait: float | None = None) -> Settled:
        """Moves the deadline to `ack_wait` seconds from now, else as the subscription has it."""
        return await self._consumer._member.extend(self._lease, ack_wait)

    async def __aenter__(self) -> Self:
        self._consumer._member.keep(self._lease)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self._finish()
        elif isinstance(error, Exception):
            await self._give_back(error)
        elif not self._lease.settled:
            self._consumer._member.abandon(self._lease, reason_of(error))

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
        """After a failure. That the service cannot be told must not hide it."""
        if self._lease.settled:
            return
        try:
            await self.nack(reason=reason_of(error))
        except Exception as trouble:  # noqa: BLE001 (what went wrong first is what the caller has to see)
            self._consumer._member.leases.lose(self._lease, f"it could not be nacked: {trouble}")


AsyncHandler = Callable[[AsyncDelivery], Awaitable[object]]
"""What `work` calls with each delivery."""


class AsyncConsumer:
    """An asynchronous iterator over the deliveries of a subscription, whose stream outlives its connections.

    It reads ahead up to `prefetch` and keeps those leases alive until they are handed out. With a lost
    connection its leases end, and their messages come again. Several tasks may iterate over one consumer.
    `async with` opens it and ends it: what is being settled is waited for, all other leases end at once. One
    that nobody holds any more is ended too. Giving up a wait for the next delivery loses nothing.
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
        """Calls the handler with each delivery, `concurrency` at a time, as within its block.

        Where the handler raises, that is logged, the message nacked, and work goes on. It ends with `stop`,
        after the handlers under way, or with an error that no patience mends, such as `NotFound`. Cancelled,
        it cancels the handlers and gives their messages back; handlers on threads, which nobody can cancel,
        come to their end first, unless it is broken off a second time.
        """
        if concurrency < 1:
            raise ValueError("somebody has to do the work")
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
        """Hands out nothing more, which ends every iteration; what was handed out may still be settled.

        What was read ahead stays with this consumer until it is closed, which should be soon.
        """
        self._member.stop()

    async def aclose(self) -> None:
        """Ends the stream, after what is being settled; the leases of all else end. Twice is harmless."""
        await self._member.aclose(self._patience_seconds)

    async def _work(self, handler: AsyncHandler) -> None:
        async for delivery in self:
            # A lost lease is logged, and there is nobody here to raise it to.
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
