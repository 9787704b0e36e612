"""The part of the blocking face that takes messages from subscriptions and settles them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Unpack

from gapless import _delivery, _transactions
from gapless._consuming import ConsumeOptions, Consuming, Consumption, prefetch_for
from gapless._delivery import Delivery, Leased, Outstanding, Receipt, Settled, State
from gapless._models import NewMessage, Payload
from gapless._sync_calls import SyncCalls
from gapless._sync_consumer import SyncConsumer, SyncDelivery, SyncHandler
from gapless._sync_member import SyncMember
from gapless._sync_stream import SyncStream
from gapless._transactions import Committed


class SyncQueue(SyncCalls):
    """Deliveries, and what becomes of them."""

    def consume(self, subscription: str, **options: Unpack[ConsumeOptions]) -> SyncConsumer:
        """The messages of a durable subscription as they are handed to this member, for as long as it runs.

        Options are those of `ConsumeOptions`. What the service refuses, such as a subscription that is not
        there (`NotFound`), is raised when the consumer is first read or entered.
        """
        asked = Consumption(subscription, **options)
        consuming = Consuming(asked, self._config, self._effects)
        stream = SyncStream(consuming, self._http, self._config, self._effects)
        member = SyncMember(consuming, stream, self._call, self._effects)
        return SyncConsumer(member, asked, self._config.timeout_seconds)

    def work(
        self,
        subscription: str,
        handler: SyncHandler,
        *,
        concurrency: int = 1,
        **options: Unpack[ConsumeOptions],
    ) -> None:
        """Calls the handler with each delivery of the subscription, `concurrency` at a time, until it ends.

        As `SyncConsumer.work` of a consumer that reads two deliveries ahead for each handler.
        """
        options.setdefault("prefetch", prefetch_for(concurrency))
        with self.consume(subscription, **options) as consumer:
            consumer.work(handler, concurrency=concurrency)

    def pull(self, subscription: str, count: int = 1, *, wait: float = 0.0) -> list[Delivery]:
        """Up to `count` deliveries (up to 1000), waiting up to `wait` seconds (up to 30) for the first.

        Nothing extends their leases but `extend`.
        """
        return self._call(_delivery.pull(subscription, count, wait))

    def look(
        self, subscription: str, state: State | None = None, *, page_size: int = 100
    ) -> Iterator[Outstanding]:
        """What the subscription has not settled, by id: of one state, or all. Nothing is leased by it.

        With an ordering it ends ten thousand messages beyond where the subscription stands.
        """
        return self._slices(_delivery.look(subscription, state, page_size))

    def ack(self, subscription: str | None, receipts: Iterable[Receipt]) -> list[Settled]:
        """Settles up to 1000 deliveries for good; what became of each, in order. Committed on return.

        With None for the subscription they may be of several: receipts know theirs. So it is with `nack` and
        `extend`, too.
        """
        return self._call(_delivery.ack(subscription, receipts))

    def nack(
        self,
        subscription: str | None,
        receipts: Iterable[Receipt],
        *,
        delay: float | None = None,
        dead_letter: bool = False,
        reason: str | None = None,
    ) -> list[Settled]:
        """Gives up to 1000 deliveries back, to come again after `delay` seconds, else as the backoff says.

        With `dead_letter` they do not come again. `reason` stands in the dead letters that come of them.
        """
        return self._call(_delivery.nack(subscription, receipts, delay, dead_letter, reason))

    def extend(
        self, subscription: str | None, receipts: Iterable[Receipt], *, ack_wait: float | None = None
    ) -> list[Settled]:
        """Moves up to 1000 deadlines to `ack_wait` seconds from now, else as the subscription has it."""
        return self._call(_delivery.extend(subscription, receipts, ack_wait))

    def transaction(
        self,
        publish: Iterable[tuple[str, NewMessage | Payload]] = (),
        ack: Iterable[Leased | tuple[str, str]] = (),
        *,
        idempotency_key: str | None = None,
    ) -> Committed:
        """Publishes messages, each to the channel named before it, and acks deliveries: all of it or nothing.

        What is acked is a delivery, or a subscription's name and a receipt. Raises `TransactionConflict` when
        a lease among them had ended. Deliveries of `consume` are settled by it: the end of their block does
        nothing more.
        """
        acked = list(ack)
        call = _transactions.transaction(publish, acked, self._effects.new_key, idempotency_key)
        committed = self._call(call)
        for one in acked:
            if isinstance(one, SyncDelivery):
                one._settle_elsewhere()
        return committed
