"""The part of the asyncio face that takes messages from subscriptions and settles them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, Unpack, overload

from gapless._async.calls import AsyncCalls
from gapless._async.consumer import AsyncConsumer, AsyncDelivery, AsyncHandler
from gapless._async.member import AsyncMember
from gapless._async.stream import AsyncStream
from gapless._calls import delivery as _delivery
from gapless._calls import transactions as _transactions
from gapless._calls.delivery import Ack, Leased, PulledDelivery, Receipt, Settled
from gapless._calls.transactions import Committed
from gapless._lost import Gap
from gapless._models import NewMessage, Payload
from gapless._options import known
from gapless._streams.consuming import ConsumeOptions, Consuming, Consumption, prefetch_for
from gapless._streams.pulling import AutoConsumeOptions, Pulling


class AsyncQueue(AsyncCalls):
    """Methods that take deliveries from subscriptions and settle them."""

    @overload
    def consume(
        self, subscription: str, *, ack: Literal["auto"], **options: Unpack[AutoConsumeOptions]
    ) -> AsyncStream[PulledDelivery]: ...
    @overload
    def consume(
        self, subscription: str, *, ack: Literal["manual"] = "manual", **options: Unpack[ConsumeOptions]
    ) -> AsyncConsumer: ...
    def consume(
        self, subscription: str, *, ack: Ack = "manual", **options: Any
    ) -> AsyncConsumer | AsyncStream[PulledDelivery]:
        """Takes the messages of a durable subscription as one of its members, until the consumer ends.

        `ConsumeOptions` lists the options. If the service refuses, for example because there is no such
        subscription (`NotFound`), the error is raised when the consumer is first read or entered.

        With `ack="auto"` the service settles each message when it hands it out, at most once: it is lost if
        its answer is, or if the wait for it is cancelled while it is on its way. It gives a stream of
        `PulledDelivery`, as `pull` does, whose items have no receipt and nothing to settle. The options are
        those of `AutoConsumeOptions`. The next message is taken when the one before was handed out and
        another is wanted, so a slow receiver loses nothing. Errors are raised when the stream is first read.
        """
        if ack == "auto":
            known("consume", AutoConsumeOptions, options, "ack")
            pulling = Pulling(subscription, self._config, self._effects, **options)
            return AsyncStream(pulling, self._pool, self._config, self._effects)
        if ack != "manual":
            raise ValueError(f'ack is "manual" or "auto", not {ack!r}')
        asked = Consumption(subscription, **known("consume", ConsumeOptions, options, "ack"))
        consuming = Consuming(asked, self._config, self._effects)
        stream = AsyncStream(consuming, self._pool, self._config, self._effects)
        member = AsyncMember(consuming, stream, self._call, self._effects)
        return AsyncConsumer(member, asked, self._config.timeout_seconds)

    async def work(
        self,
        subscription: str,
        handler: AsyncHandler,
        *,
        concurrency: int = 1,
        **options: Unpack[ConsumeOptions],
    ) -> None:
        """Calls the handler with each delivery of the subscription, `concurrency` at a time, until it ends.

        It is `AsyncConsumer.work` of a consumer that reads two deliveries ahead for each handler. It acks
        what the handler has done, so there is no `ack="auto"`.
        """
        known("work", ConsumeOptions, options, "concurrency")
        options.setdefault("prefetch", prefetch_for(concurrency))
        async with self.consume(subscription, **options) as consumer:
            await consumer.work(handler, concurrency=concurrency)

    async def pull(
        self,
        subscription: str,
        count: int = 1,
        *,
        wait: float = 0.0,
        ack: Ack = "manual",
        on_gap: Callable[[Gap], object] | None = None,
    ) -> list[PulledDelivery]:
        """Up to `count` deliveries (up to 1000), waiting up to `wait` seconds (up to 30) for the first.

        Only `extend` extends their leases. If retention removed messages before this subscription had settled
        them, the wait ends, and `on_gap` is called with each `Gap`; without `on_gap` the gap is logged.

        With `ack="auto"` the service settles them before it answers: each is handed out at most once, has no
        receipt, and is gone if the answer is lost.
        """
        return await self._call(_delivery.pull(subscription, count, wait, on_gap, ack))

    async def ack(self, subscription: str | None, receipts: Iterable[Receipt]) -> list[Settled]:
        """Settles up to 1000 deliveries for good, committed on return; returns the result of each, in order.

        If the subscription is None, the receipts may be of several, because each receipt names its own. The
        same holds for `nack`, `release` and `extend`.
        """
        return await self._call(_delivery.ack(subscription, receipts))

    async def nack(
        self,
        subscription: str | None,
        receipts: Iterable[Receipt],
        *,
        delay: float | None = None,
        dead_letter: bool = False,
        reason: str | None = None,
    ) -> list[Settled]:
        """Gives up to 1000 deliveries back. They come again after `delay` seconds, else as the backoff says.

        With `dead_letter` they do not come again. If they become dead letters, those hold the `reason`.
        """
        return await self._call(_delivery.nack(subscription, receipts, delay, dead_letter, reason))

    async def release(
        self, subscription: str | None, receipts: Iterable[Receipt], *, delay: float | None = None
    ) -> list[Settled]:
        """Gives up to 1000 deliveries back that were not worked on. They come again at once, or after `delay`
        seconds, with the same attempt: it is neither an attempt nor a failure."""
        return await self._call(_delivery.release(subscription, receipts, delay))

    async def extend(
        self, subscription: str | None, receipts: Iterable[Receipt], *, ack_wait: float | None = None
    ) -> list[Settled]:
        """Moves up to 1000 deadlines to `ack_wait` seconds from now (default: the subscription's)."""
        return await self._call(_delivery.extend(subscription, receipts, ack_wait))

    async def transaction(
        self,
        publish: Iterable[tuple[str, NewMessage | Payload]] = (),
        ack: Iterable[Leased | tuple[str, str]] = (),
        *,
        idempotency_key: str | None = None,
    ) -> Committed:
        """Publishes pairs of a channel and a message, and acks deliveries: all of it or nothing.

        Each item of `ack` is a delivery, or a pair of a subscription's name and a receipt. Raises
        `TransactionConflict` if one of the leases had ended. It settles deliveries of `consume`: the end of
        their block does nothing more. Acks without a message are not sent again when their answer is lost.
        """
        acked = list(ack)
        call = _transactions.transaction(publish, acked, self._effects.new_key, idempotency_key)
        committed = await self._call(call)
        for one in acked:
            if isinstance(one, AsyncDelivery):
                one._settle_elsewhere()
        return committed
